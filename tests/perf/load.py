"""Many HTTP clients at one server, this one or any other with OpenAI's chats (llama-server, vLLM).

    tui-chat serve -m MODEL --most-requests 512 &
    python -m tests.perf.load http://127.0.0.1:8080 --clients 32 --long-tokens 8000 --long-every 5

Each client asks for one answer after the other; beside them a long prompt arrives every so many seconds.
Says tokens a second of all, and time to the first token and gaps between pieces, p50 and p99, of the clients
and of the long prompts. Tokens are counted by the server, in its last event.
"""

import argparse
import asyncio
import json
import random
import time
from dataclasses import dataclass, field

import httpx

SENTENCE = "the tern flew over a cold sea and came to an island where nobody had ever read a book"


@dataclass
class Seen:
    """What some clients saw."""

    firsts: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    tokens: int = 0
    answers: int = 0
    failures: dict[str, int] = field(default_factory=dict)

    def row(self, name: str, seconds: float) -> str:
        first, gap = (
            f"{1000 * share(of, 0.5):8.1f} {1000 * share(of, 0.99):8.1f}" for of in (self.firsts, self.gaps)
        )
        failed = f"  failed: {self.failures}" if self.failures else ""
        return f"{name:<8} {self.answers:6} {self.tokens / seconds:10.1f}   {first}   {gap}{failed}"


def share(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


def prompt(tokens: int, seed: int) -> str:
    """About so many tokens, with a beginning that no other prompt has."""
    draw = random.Random(seed)
    return f"{seed} " + " ".join(draw.choices(SENTENCE.split(), k=max(1, tokens - 20)))


async def ask(client: httpx.AsyncClient, body: dict[str, object], seen: Seen) -> None:
    """One streamed answer."""
    started = last = time.perf_counter()
    first = True
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                await response.aread()
                raise RuntimeError(f"status {response.status_code}: {response.text[:80]}")
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line[6:])
                seen.tokens += (chunk.get("usage") or {}).get("completion_tokens", 0)
                delta = chunk["choices"][0]["delta"] if chunk.get("choices") else {}
                if not (delta.get("content") or delta.get("reasoning_content")):
                    continue
                now = time.perf_counter()
                (seen.firsts if first else seen.gaps).append(now - (started if first else last))
                first, last = False, now
        seen.answers += 1
    except (httpx.HTTPError, RuntimeError) as error:
        cause = str(error) or type(error).__name__
        seen.failures[cause] = seen.failures.get(cause, 0) + 1
        await asyncio.sleep(0.1)


async def run(options: argparse.Namespace) -> None:
    short, long = Seen(), Seen()
    limits = httpx.Limits(max_connections=options.clients + 16)
    headers = {"authorization": f"Bearer {options.key}"}
    async with httpx.AsyncClient(
        base_url=options.address, timeout=600, limits=limits, headers=headers
    ) as client:
        model = options.model or (await client.get("/v1/models")).json()["data"][0]["id"]
        seeds = iter(range(1, 1 << 30))

        def body(tokens: int, written: int) -> dict[str, object]:
            message = {"role": "user", "content": prompt(tokens, next(seeds))}
            return {
                "model": model,
                "messages": [message],
                "max_tokens": written,
                "stream": True,
                "stream_options": {"include_usage": True},
                "ignore_eos": True,
                "temperature": 0.8,
            }

        started = time.perf_counter()
        end = started + options.seconds

        async def clients() -> None:
            while time.perf_counter() < end:
                await ask(client, body(options.prompt_tokens, options.tokens), short)

        async def longs() -> None:
            asked = []
            while options.long_tokens and time.perf_counter() < end:
                asked.append(asyncio.create_task(ask(client, body(options.long_tokens, 16), long)))
                await asyncio.sleep(options.long_every)
            await asyncio.gather(*asked)

        await asyncio.gather(*(clients() for _ in range(options.clients)), longs())
        seconds = time.perf_counter() - started
    print(f"{model} at {options.address}: {options.clients} clients, {seconds:.1f} s")
    print("         answers      tok/s   first p50      p99    gap p50      p99  (ms)")
    print(short.row("clients", seconds))
    if options.long_tokens:
        print(long.row("long", seconds))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("address")
    parser.add_argument("--model", help="the first that the server lists")
    parser.add_argument("--key", default="none")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--prompt-tokens", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--long-tokens", type=int, default=0, help="of the prompts beside them; 0: none")
    parser.add_argument("--long-every", type=float, default=5.0, metavar="SECONDS")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
