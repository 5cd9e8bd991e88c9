"""Whether a first long prompt fails or stutters where little memory is left beside the weights.

python -m tests.perf.first_prompt --model MODEL --vram-limit 8GiB --tokens 16000

A second chat answers meanwhile: the longest gap between two of its tokens is told, and what the device
held at most of the limit.
"""

import argparse
import random
import threading
import time
from itertools import pairwise
from pathlib import Path

import torch

from app.settings.file import parse_size
from engine.api.generation import Generation
from engine.api.request import FinishReason, Request, SamplingParams, TextDelta
from engine.engine import Engine, Model

SECOND_TOKENS = 4000
NEW = 32


def ask(model: Model, tokens: int, new: int, seed: int) -> Generation:
    """A prompt of random words."""
    words = random.Random(seed)
    highest = min(20_000, model.tokenizer.vocab_size - 1)
    prompt = tuple(words.randrange(1000, highest) for _ in range(tokens))
    return model.submit(Request(prompt, SamplingParams(temperature=0.0), max_tokens=new, ignore_eog=True))


class Watch:
    """Follows an answer on a thread of its own and keeps when each of its pieces came."""

    def __init__(self, generation: Generation) -> None:
        self.times: list[float] = []
        self.begun = threading.Event()
        self._generation = generation
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        for event in self._generation.events():
            if isinstance(event, TextDelta) and event.token_ids:
                self.times.append(time.perf_counter())
                self.begun.set()
        self.begun.set()

    def stop(self) -> None:
        """Cancel the answer and wait for its end."""
        self._generation.cancel()
        self._thread.join()

    def longest_gap(self, start: float, end: float) -> float:
        """Seconds between two pieces while something else ran."""
        seen = [start, *(one for one in self.times if start < one < end), end]
        return max(after - before for before, after in pairwise(seen))


def mapped(engine: Engine) -> int:
    """Bytes of KV that the device holds."""
    return sum(resident.runner.kv_bytes for resident in engine._loop.models)


def run(engine: Engine, path: Path, tokens: int, limit: int) -> bool:
    """Load, ask twice, print what was seen; whether nothing failed."""
    started = time.perf_counter()
    model = engine.load(path)
    stats = engine.stats()
    print(f"loaded in {time.perf_counter() - started:.1f} s, KV {model.info.kv_dtype} {model.info.kv_note}")
    scratch = [resident.runner.scratch_bytes for resident in engine._loop.models]
    print(f"scratch measured {scratch[0] / 1e6:.0f} MB, KV budget {stats.kv_bytes_total / 1e6:.0f} MB")
    if tokens + NEW > model.max_tokens:
        print(f"the KV holds {model.max_tokens} tokens: the prompt is cut to fit")
        tokens = model.max_tokens - NEW
    second = Watch(ask(model, 32, SECOND_TOKENS, 1))
    second.begun.wait()
    torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    end = ask(model, tokens, NEW, 2).result(600)[1]
    ended = time.perf_counter()
    gap = second.longest_gap(begun, ended)
    second.stop()
    failed = end.reason is not FinishReason.LENGTH
    print(f"first prompt: {tokens} tokens in {ended - begun:.2f} s, ended by {end.reason} {end.error or ''}")
    print(f"tokens of a pass, fewer after one found no memory: {engine._loop.scheduler.prefill_limit.tokens}")
    print(f"longest gap of the second chat: {gap * 1e3:.0f} ms")
    held = torch.cuda.max_memory_reserved() + mapped(engine)
    print(f"held at most {held / 1e6:.0f} MB of {limit / 1e6:.0f} MB")
    return not failed and held <= limit


def main() -> int:
    """Exit 1 when the prompt failed or the limit was passed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--vram-limit", type=parse_size, default=8 << 30)
    parser.add_argument("--tokens", type=int, default=16_000)
    args = parser.parse_args()
    with Engine("cuda", vram_limit_bytes=args.vram_limit) as engine:
        return 0 if run(engine, args.model, args.tokens, args.vram_limit) else 1


if __name__ == "__main__":
    raise SystemExit(main())
