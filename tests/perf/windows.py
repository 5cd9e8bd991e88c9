"""How much memory the KV of several long chats takes where layers see the newest tokens alone.

python -m tests.perf.windows --device cuda --model MODEL --chats 8 --tokens 32000
"""

import argparse
import random
import time
from pathlib import Path

from engine.api.generation import Generation
from engine.api.request import Request, SamplingParams
from engine.api.stats import EngineStats, SequenceState
from engine.engine import Engine


def held(stats: EngineStats) -> list[int]:
    """Bytes that live sequences hold, by group."""
    return [group.bytes_used for group in stats.models[0].kv_groups]


def all_answer(stats: EngineStats, chats: int) -> bool:
    """Whether so many sequences decode."""
    return sum(one.state is SequenceState.DECODE for one in stats.sequences) == chats


def wait_for_answers(engine: Engine, running: list[Generation]) -> None:
    """Until all decode at once; ends with an error where one of them ended before."""
    while not all_answer(engine.stats(), len(running)):
        for one in running:
            if one.stream.finished is not None:
                raise SystemExit(f"a chat ended before all answered: {one.stream.finished}")
        time.sleep(0.05)


def main() -> None:
    """Read all prompts, and print what is held while all chats answer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--chats", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=32_000)
    args = parser.parse_args()
    words = random.Random(0)
    with Engine(args.device) as engine:
        model = engine.load(args.model)
        started = time.perf_counter()
        running = []
        for _ in range(args.chats):
            prompt = tuple(words.randrange(1000, 20_000) for _ in range(args.tokens))
            params = SamplingParams(temperature=0.0)
            # The first to answer goes on while the others read.
            running.append(model.submit(Request(prompt, params, max_tokens=args.tokens, ignore_eog=True)))
        wait_for_answers(engine, running)
        print(f"read in {time.perf_counter() - started:.1f} s")
        # A window's pages go back when the next tick is planned.
        time.sleep(0.5)
        stats = engine.stats()
        every = stats.models[0].kv_bytes_per_token * args.chats * args.tokens
        for group, count in zip(stats.models[0].kv_groups, held(stats), strict=True):
            print(f"window {group.window:6,}: {count / 1e9:.2f} GB, {group.bytes_per_token} bytes a token")
        total = sum(held(stats))
        print(f"held {total / 1e9:.2f} GB, {total / every:.1%} of {every / 1e9:.2f} GB if all were kept")
        for one in running:
            one.cancel()


if __name__ == "__main__":
    main()
