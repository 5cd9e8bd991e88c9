"""Mixed requests over HTTP for a long time, many of whose clients go: nothing may stay of any of them.

    python -m tests.perf.serve_soak --minutes 60 --clients 24

A real server on a port, with an engine of its own, and clients in another process. They ask for chats, texts,
responses and messages, streamed and whole, free and held to a schema, several choices at once, with
log-probabilities; for tokens, models and figures; send bodies that are none; and leave whenever they like:
with half of the request sent, while it is read, in the middle of the answer. After every round of them there
must be no sequence, no block that is held and no request that counts as taken. Says how requests ended, and
after every round how many there were, what the process holds and what holds it: pieces that glibc gave out,
what it keeps of freed ones, objects of Python's, threads, files and sockets. At the end it says how memory
went with the requests behind the first quarter, by a straight line through all rounds, and with `--trace`
which lines of Python hold more than then (tracing takes memory of its own, and half of the speed). The
command fails where the line rises by more than 1 MiB in 1,000 requests, or where an answer was other than it
may be.
"""

import argparse
import asyncio
import ctypes
import gc
import json
import multiprocessing
import sys
import threading
import time
import tracemalloc
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from random import Random

import numpy as np
import psutil

from app.models.builtin import builtin_model_path
from app.models.make import switch_often
from app.serve.listening import listening_socket
from app.serve.log_row import Row
from app.serve.program import ServeOptions, Server, make_application
from app.serve.requests.served import Served, ServedModels
from engine import Engine, SamplingParams
from engine.device.memory import process_bytes, return_freed_memory

MIB = 1 << 20
MOST_GROWTH = MIB
"""Bytes in 1,000 requests."""
ROUND_S = 20.0
PATIENCE_S = 600.0
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["b", "c"]}}, "required": ["a"]}
WORDS = ("tern", "flew", "over", "a", "cold", "sea", "island", "where", "nobody", "had", "read", "books")
ALLOWED = {"whole": {200, 429}, "malformed": {400, 404}, "look": {200}}


@dataclass(frozen=True)
class Asked:
    """One request, and when its client goes."""

    kind: str
    path: str
    body: bytes
    leaves: str = ""
    """While it is "sending", "reading" or "answering"; "" for a client that stays."""


class _Mallinfo(ctypes.Structure):
    """What glibc's `mallinfo2` tells, in bytes but for the counts."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names.split())


@dataclass(frozen=True)
class Held:
    """What the process holds once a round has ended."""

    requests: int
    """So far."""
    resident: int
    given_out: int
    """Bytes of glibc's pieces that are in use, large ones that have pages of their own among them."""
    kept: int
    """Bytes of freed pieces that glibc has not given back."""
    objects: int
    """Of Python's that its collector knows."""
    threads: int
    files: int

    def __str__(self) -> str:
        sizes = f"{self.resident / MIB:8.1f} {self.given_out / MIB:9.1f} {self.kept / MIB:6.1f}"
        return f"{self.requests:9} {sizes} {self.objects:9} {self.threads:8} {self.files:6}"


HEADING = " requests resident given out   kept   objects  threads  files"


def held(requests: int) -> Held:
    """What it holds now, garbage left out."""
    gc.collect()
    return_freed_memory()
    info = ctypes.CDLL(None).mallinfo2
    info.restype = _Mallinfo
    told, process = info(), psutil.Process()
    return Held(
        requests,
        process_bytes(),
        told.uordblks + told.hblkhd,
        told.fordblks,
        len(gc.get_objects()) + gc.get_freeze_count(),
        threading.active_count(),
        process.num_fds(),
    )


def text(random: Random, most: int) -> str:
    return " ".join(random.choices(WORDS, k=random.randint(1, random.choice((8, 40, most)))))


def drawn(random: Random) -> Asked:
    """A request of some kind."""
    leaves = random.choice(("", "", "sending", "reading", "answering"))
    pick = random.random()
    if pick < 0.06:
        path = random.choice(("/v1/models", "/metrics", "/health"))
        return Asked("look", path, b"")
    if pick < 0.12:
        wild = random.choice((b"{", b"[]", b'{"messages": 3}', b'{"messages": []}', b"\xff", b'{"n": -1}'))
        return Asked("malformed", "/v1/chat/completions", wild)
    path, body = random.choice((chat, completion, response, message, tokenize))(random)
    return Asked("whole", path, json.dumps(body).encode(), leaves)


def chat(random: Random) -> tuple[str, dict[str, object]]:
    body: dict[str, object] = {"messages": [{"role": "user", "content": text(random, 300)}]}
    body |= {"max_tokens": random.choice((1, 8, 60)), "temperature": random.choice((0, 1.0))}
    body |= random.choice(({}, {"n": 3}, {"logprobs": True, "top_logprobs": 3}, {"stop": ["a", "the "]}))
    if random.random() < 0.2:
        string = {"type": "string", "maxLength": random.randint(1, 60)}
        schema = random.choice((SCHEMA, {**SCHEMA, "properties": {"a": string}}))
        body["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    return "/v1/chat/completions", body | {"stream": random.random() < 0.6}


def completion(random: Random) -> tuple[str, dict[str, object]]:
    body: dict[str, object] = {"prompt": [text(random, 200)] * random.choice((1, 2)), "max_tokens": 20}
    body |= random.choice(({}, {"guided_regex": "[a-z ]{1,9}"}, {"logprobs": 2}))
    return "/v1/completions", body | {"stream": random.random() < 0.6}


def response(random: Random) -> tuple[str, dict[str, object]]:
    body: dict[str, object] = {"input": text(random, 200), "max_output_tokens": 30}
    return "/v1/responses", body | {"stream": random.random() < 0.6}


def message(random: Random) -> tuple[str, dict[str, object]]:
    said = [{"role": "user", "content": text(random, 200)}]
    return "/v1/messages", {"messages": said, "max_tokens": 30, "stream": random.random() < 0.6}


def tokenize(random: Random) -> tuple[str, dict[str, object]]:
    return "/tokenize", {"content": text(random, 300)}


async def ask(port: int, asked: Asked, random: Random) -> str:
    """Ask, and go when it is time; returns how it ended."""
    method = "POST" if asked.body else "GET"
    head = f"{method} {asked.path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    request = f"{head}content-length: {len(asked.body)}\r\n\r\n".encode() + asked.body
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        if asked.leaves == "sending":
            writer.write(request[: random.randint(1, len(request) - 1)])
            await writer.drain()
            return "gone while sending"
        writer.write(request)
        if asked.leaves == "reading":
            await asyncio.sleep(random.choice((0.0, 0.01, 0.1)))
            return "gone while it was read"
        if asked.leaves == "answering":
            await reader.read(random.choice((1, 300, 3000)))
            return "gone while it was answered"
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
        return checked(asked, answer)
    finally:
        writer.close()


def checked(asked: Asked, answer: bytes) -> str:
    """What came, if it may come; raises `AssertionError`."""
    status = int(answer.split(b" ", 2)[1])
    assert status in ALLOWED[asked.kind], (asked, answer[:500])
    if status != 200:
        return f"refused with {status}"
    kind = "streamed" if b"text/event-stream" in answer else "whole"
    # Every protocol has a last event of its own, and each stream ends in the last of its chunks.
    assert kind == "whole" or answer.endswith(b"\r\n0\r\n\r\n"), (asked, answer[-300:])
    return f"answered, {kind}" if asked.kind != "look" else "looked"


async def round_of(port: int, clients: int, seconds: float, seed: int) -> Counter[str]:
    """All clients for a while, until each has its last answer."""
    end, outcomes = time.monotonic() + seconds, Counter[str]()

    async def one(random: Random) -> None:
        while time.monotonic() < end:
            outcomes[await ask(port, drawn(random), random)] += 1

    await asyncio.gather(*(one(Random(f"{seed}/{client}")) for client in range(clients)))
    return outcomes


def client_process(port: int, clients: int, seconds: float, seed: int) -> Counter[str]:
    return asyncio.run(round_of(port, clients, seconds, seed))


def settle(engine: Engine) -> None:
    """Wait until all have ended, then look for what nobody has."""
    deadline = time.monotonic() + PATIENCE_S
    while engine.stats().sequences:
        assert time.monotonic() < deadline, f"{engine.stats().sequences} never ended"
        time.sleep(0.05)
    loop = engine._loop

    def bookkeeping() -> int:
        loop.scheduler.check()
        assert not loop.scheduler.sequences and not loop._outputs
        return sum(resident.blocks.held for resident in loop.models)

    held = loop.call(bookkeeping)
    assert not held, f"{held} blocks were leaked"


def soak(options: argparse.Namespace) -> int:
    rows: Counter[str] = Counter()

    def note(row: Row) -> None:
        rows[type(row).__name__] += 1

    switch_often()
    if options.trace:
        tracemalloc.start()
    outcomes: Counter[str] = Counter()
    rounds: list[Held] = []
    trace: list[tracemalloc.Snapshot] = []
    print(HEADING, flush=True)
    with (
        Engine("cpu", kv_budget_bytes=options.kv_mib * MIB, threads=options.threads) as engine,
        listening_socket("127.0.0.1", 0) as listening,
    ):
        model = engine.load(options.model)
        served = Served(model, "served", frozenset(), SamplingParams())
        serve = ServeOptions(most_requests=options.most_requests)
        application = make_application(ServedModels(lambda: [served]), engine.stats, serve, note)
        listening.listen(512)
        server, port = Server(application, serve), listening.getsockname()[1]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        started = time.monotonic()
        try:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                seed = options.seed
                while time.monotonic() - started < 60 * options.minutes:
                    seed += 1
                    asked = pool.submit(client_process, port, options.clients, ROUND_S, seed)
                    outcomes += asked.result()
                    settle(engine)
                    rounds.append(held(outcomes.total()))
                    print(rounds[-1], flush=True)
                    passed = (time.monotonic() - started) / (60 * options.minutes)
                    if options.trace and passed > 0.25 and not trace:
                        trace.append(tracemalloc.take_snapshot())
                minutes = (time.monotonic() - started) / 60
                if options.trace:
                    tell_growth(trace)
        finally:
            server.end()
            thread.join(30)
    print(f"{outcomes.total()} requests in {minutes:.1f} minutes:")
    for name, count in outcomes.most_common():
        print(f"  {count:7} {name}")
    print(f"rows in the log: {dict(rows)}; blocks leaked: 0")
    return report(rounds[len(rounds) // 4 :])


def tell_growth(trace: list[tracemalloc.Snapshot]) -> None:
    """The lines of Python that hold more than after a quarter."""
    for one in tracemalloc.take_snapshot().compare_to(trace[0], "lineno")[:20] if trace else ():
        print(f"  {one.size_diff / 1024:9.1f} KiB {one.count_diff:7} {one.traceback}")


def report(rounds: list[Held]) -> int:
    """Say how memory went; returns the exit code."""
    thousands = [one.requests / 1000 for one in rounds]
    print(f"behind {rounds[0].requests} requests, in 1,000 more:")
    rises = {}
    for name, unit in (("resident", MIB), ("given_out", MIB), ("kept", MIB), ("objects", 1)):
        (rise, _), spread = fitted(thousands, [getattr(one, name) / unit for one in rounds])
        rises[name] = rise
        print(f"  {name:<10} {rise:+10.3f} +- {spread:.3f} {'MiB' if unit == MIB else ''}")
    return int(rises["resident"] * MIB > MOST_GROWTH)


def fitted(x: list[float], y: list[float]) -> tuple[tuple[float, float], float]:
    """The straight line nearest to the points, and the standard error of its rise."""
    rise, start = np.polyfit(x, y, 1)
    rest = np.asarray(y) - (rise * np.asarray(x) + start)
    error = np.sqrt((rest**2).sum() / max(1, len(x) - 2) / max(1e-9, np.var(x) * len(x)))
    return (float(rise), float(start)), float(error)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument(
        "--most-requests", type=int, default=32, help="that run or wait before others get 429"
    )
    parser.add_argument("--kv-mib", type=int, default=64, help="of context memory, which fills up at first")
    parser.add_argument("--model", default=builtin_model_path())
    parser.add_argument("--threads", type=int, help="fewer where other programs have the cores")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trace", action="store_true", help="tell which lines of Python hold more memory")
    sys.exit(soak(parser.parse_args()))


if __name__ == "__main__":
    main()
