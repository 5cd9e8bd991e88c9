"""Many HTTP clients at one server, this one or any other with OpenAI's protocol (llama-server, vLLM).

    tui-chat serve -m MODEL &
    python -m tests.perf.load http://127.0.0.1:8080 --clients 8 32 --long-tokens 16000 --long-every 6

Each client asks for one answer after the other; beside them a long prompt arrives every so many seconds.
Says tokens a second of all, and time to the first token and gaps between pieces, p50 and p99, of the
clients and of the long prompts. Tokens are counted by the server, in its last event. With `--vocab`
prompts are random token ids, exactly so many, of `/v1/completions`; else they are words of
`/v1/chat/completions`. Clients run in processes of their own and read bytes from sockets: they take a
small part of a core, so that what is measured is the server.
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import time
import urllib.request
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

SENTENCE = "the tern flew over a cold sea and came to an island where nobody had ever read a book"
SAMPLING = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "ignore_eos": True}
CLIENTS_A_PROCESS = 16
LONG_ANSWER = 16
COLUMNS = ("first p50", "p99", "most", "gap p50", "p99", "most")
HEAD = f"{'server':<14} clients kind  answers     tok/s " + " ".join(f"{name:>9}" for name in COLUMNS)


@dataclass
class Seen:
    """What some clients saw, in seconds."""

    firsts: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    tokens: int = 0
    answers: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Seen") -> None:
        self.firsts += other.firsts
        self.gaps += other.gaps
        self.tokens += other.tokens
        self.answers += other.answers
        self.failures += other.failures

    def figures(self, seconds: float) -> dict[str, Any]:
        """Tokens a second, and milliseconds."""
        shares = {"p50": 0.5, "p99": 0.99, "most": 1.0}
        return {
            "answers": self.answers,
            "tok_s": round(self.tokens / seconds, 1),
            "first_ms": {name: share(self.firsts, part) for name, part in shares.items()},
            "gap_ms": {name: share(self.gaps, part) for name, part in shares.items()},
            "failures": dict(self.failures),
        }


def share(values: list[float], part: float) -> float | None:
    """Milliseconds that this part of the values is below of."""
    ordered = sorted(values)
    return round(1e3 * ordered[min(len(ordered) - 1, int(part * len(ordered)))], 2) if ordered else None


@dataclass(frozen=True)
class Work:
    """What the clients of one process ask for."""

    address: str
    key: str
    model: str
    vocab: int
    clients: int
    seconds: float
    prompt_tokens: int
    tokens: int
    every: float | None = None
    """Seconds between two requests, whose answers are not waited for; None: one after the other."""
    seed: int = 0

    def request(self, number: int) -> bytes:
        """One request, with a prompt whose beginning no other has."""
        draw = random.Random(number)
        asked: dict[str, Any] = {"model": self.model, "max_tokens": self.tokens, "stream": True}
        asked |= {"stream_options": {"include_usage": True}, **SAMPLING}
        if self.vocab:
            path = "/v1/completions"
            asked["prompt"] = [draw.randrange(300, self.vocab) for _ in range(self.prompt_tokens)]
        else:
            path = "/v1/chat/completions"
            words = " ".join(draw.choices(SENTENCE.split(), k=max(1, self.prompt_tokens - 20)))
            asked["messages"] = [{"role": "user", "content": f"{number} {words}"}]
        body = json.dumps(asked).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {urlsplit(self.address).netloc}\r\nconnection: close\r\n"
            f"authorization: Bearer {self.key}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


async def ask(work: Work, number: int, seen: Seen) -> None:
    """One streamed answer."""
    url, request = urlsplit(work.address), work.request(number)
    writer = None
    started = time.perf_counter()
    try:
        reader, writer = await asyncio.open_connection(url.hostname, url.port, limit=1 << 20)
        writer.write(request)
        status = (await reader.readline()).split()
        if status[1:2] != [b"200"]:
            raise RuntimeError(f"status {b' '.join(status[1:2]).decode() or 'none'}")
        await read_events(reader, started, seen)
        seen.answers += 1
    except (OSError, RuntimeError, ValueError) as error:
        seen.failures[str(error) or type(error).__name__] += 1
        await asyncio.sleep(0.1)
    finally:
        if writer is not None:
            writer.close()


async def read_events(reader: asyncio.StreamReader, started: float, seen: Seen) -> None:
    """Lines of events among those of the chunks that they come in, to the last event."""
    last, first, used = started, True, 0
    while line := await reader.readline():
        now = time.perf_counter()
        if not line.startswith(b"data: "):
            continue
        if line.startswith(b"data: [DONE]"):
            seen.tokens += used
            return
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(str(event["error"])[:80])
        used = (event.get("usage") or {}).get("completion_tokens", used)
        choice = event["choices"][0] if event.get("choices") else {}
        delta = choice.get("delta", {})
        if choice.get("text") or delta.get("content") or delta.get("reasoning_content"):
            (seen.firsts if first else seen.gaps).append(now - (started if first else last))
            first, last = False, now
    raise RuntimeError("the answer was cut off")


async def run_clients(work: Work) -> Seen:
    """All clients of one process until its time is over."""
    seen, end = Seen(), time.perf_counter() + work.seconds
    numbers = iter(range(work.seed, work.seed + (1 << 20)))

    async def one_after_the_other() -> None:
        while time.perf_counter() < end:
            await ask(work, next(numbers), seen)

    async def one_each_while(every: float) -> None:
        asked = []
        while time.perf_counter() < end:
            asked.append(asyncio.create_task(ask(work, next(numbers), seen)))
            await asyncio.sleep(every)
        await asyncio.gather(*asked)

    if work.every is None:
        await asyncio.gather(*(one_after_the_other() for _ in range(work.clients)))
    else:
        await one_each_while(work.every)
    return seen


def process(work: Work) -> tuple[Seen, float]:
    """What a process of clients saw, and the part of a core that it took."""
    started, cpu = time.perf_counter(), time.process_time()
    seen = asyncio.run(run_clients(work))
    return seen, (time.process_time() - cpu) / (time.perf_counter() - started)


def measure(options: argparse.Namespace, clients: int, seconds: float) -> dict[str, Any]:
    """One number of clients, in as many processes as that takes."""
    model = options.model or first_model(options.address, options.key)
    same = {
        "address": options.address,
        "key": options.key,
        "model": model,
        "vocab": options.vocab,
        "seconds": seconds,
    }
    processes = -(-clients // CLIENTS_A_PROCESS)
    seed = random.randrange(1 << 40) << 20
    works = [
        Work(
            clients=clients // processes + (index < clients % processes),
            prompt_tokens=options.prompt_tokens,
            tokens=options.tokens,
            seed=seed + (index << 20),
            **same,
        )
        for index in range(processes)
    ]
    if options.long_tokens:
        long = {"prompt_tokens": options.long_tokens, "tokens": LONG_ANSWER, "every": options.long_every}
        works.append(Work(clients=1, seed=seed + (processes << 20), **same, **long))
    short, longs = Seen(), Seen()
    started = time.perf_counter()
    with ProcessPoolExecutor(len(works), multiprocessing.get_context("spawn")) as pool:
        found = list(pool.map(process, works))
    for index, (seen, _) in enumerate(found):
        (short if index < processes else longs).add(seen)
    seconds = time.perf_counter() - started
    return {
        "server": options.name or options.address,
        "clients": clients,
        "seconds": round(seconds, 1),
        "short": short.figures(seconds),
        "long": longs.figures(seconds) if options.long_tokens else None,
        "busiest_client": round(max(part for _, part in found), 2),
    }


def first_model(address: str, key: str) -> str:
    """The one that the server lists first."""
    asked = urllib.request.Request(f"{address}/v1/models", headers={"authorization": f"Bearer {key}"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return str(json.load(answer)["data"][0]["id"])


def rows(result: dict[str, Any]) -> list[str]:
    """The result for people."""
    lines = []
    for kind in ("short", "long"):
        if figures := result[kind]:
            times = [
                figures[name][part] for name in ("first_ms", "gap_ms") for part in ("p50", "p99", "most")
            ]
            shown = " ".join(f"{'–' if one is None else one:>9}" for one in times)
            failed = f"  failed: {figures['failures']}" if figures["failures"] else ""
            lines.append(
                f"{result['server']:<14} {result['clients']:>7} {kind:<5} {figures['answers']:>7} "
                f"{figures['tok_s']:>9} {shown}{failed}"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("address")
    parser.add_argument("--name", help="of the server, in what is written")
    parser.add_argument("--model", help="the first that the server lists")
    parser.add_argument("--key", default="none")
    parser.add_argument("--clients", type=int, nargs="+", default=[32])
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--warm", type=float, default=0, metavar="SECONDS", help="of most clients, before")
    parser.add_argument("--vocab", type=int, default=0, metavar="N", help="ask with token ids below N")
    parser.add_argument("--prompt-tokens", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--long-tokens", type=int, default=0, help="of the prompts beside them; 0: none")
    parser.add_argument("--long-every", type=float, default=6.0, metavar="SECONDS")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add a line of JSON for each result")
    options = parser.parse_args()
    if options.warm:
        measure(options, max(options.clients), options.warm)
    print(HEAD)
    for clients in options.clients:
        result = measure(options, clients, options.seconds)
        print(
            *rows(result), f"  busiest client: {result['busiest_client']:.0%} of a core", sep="\n", flush=True
        )
        if options.json is not None:
            with options.json.open("a") as file:
                file.write(json.dumps({**asked_for(options), **result}) + "\n")


def asked_for(options: argparse.Namespace) -> dict[str, Any]:
    """What was asked for, beside the result."""
    names = ("prompt_tokens", "tokens", "long_tokens", "long_every")
    return {name: getattr(options, name) for name in names}


if __name__ == "__main__":
    main()
