"""How long masks take, and what rows lose to them on a device whose passes last so long.

    python -m tests.perf.masks MODEL --pass-ms 2.65 --rows 8

Needs no such device: matchers, their threads and the engine's way of waiting for them are the real ones, the
pass is a wait, and every row takes a random one of the tokens that it may have, as random weights would.
Rounds with the shortcut for strings that have a longest length and without it take turns. Tells of the masks,
each alone, mean and quantiles; of the passes, which rows sat one out and how long passes waited for masks.
"""

import argparse
import statistics
import time
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from app.models.make import switch_often
from engine.constraints.compiler import Constraints
from engine.constraints.matcher import Matcher
from engine.runner.sampler import wait_for_masks
from engine.tokenizer.tokenizer import Tokenizer
from tests.perf.constrained import SCHEMAS

PROMPT = [1, 2, 3]
PERCENTS = (50, 90, 99, 99.9)


@dataclass
class Row:
    """A sequence as far as waiting for masks is concerned."""

    sequence_id: int
    matcher: Matcher
    random: np.random.Generator
    token_ids: list[int] = field(default_factory=PROMPT.copy)

    def take(self) -> None:
        """One more token of those that may come."""
        assert self.matcher.error is None, self.matcher.error
        self.token_ids.append(drawn(self.matcher.words, self.random))

    def follow(self) -> None:
        """Have the next mask computed."""
        self.matcher.follow(self.token_ids, len(PROMPT))


def drawn(words: np.ndarray, random: np.random.Generator) -> int:
    """A token of a mask."""
    allowed = words.view(np.uint8)
    for token_id in random.integers(8 * len(allowed), size=16).tolist():
        if allowed[token_id >> 3] >> (token_id & 7) & 1:
            return token_id
    return int(random.choice(np.flatnonzero(np.unpackbits(allowed, bitorder="little"))))


def mask_times(matcher: Matcher, answers: int, tokens: int) -> list[float]:
    """Milliseconds of every mask, one after another."""
    times: list[float] = []
    for seed in range(answers):
        random, news = np.random.default_rng(seed), (True, list[int]())
        for _ in range(tokens):
            started = time.perf_counter()
            error = matcher._take([news])
            times.append((time.perf_counter() - started) * 1e3)
            assert error is None, error
            news = (False, [drawn(matcher.words, random)])
    return times


def passes(rows: list[Row], pass_s: float, tokens: int) -> tuple[float, float]:
    """The share of rows that sat a pass out, and the milliseconds that a pass waited for masks."""
    for row in rows:
        row.follow()
        row.matcher.ready.wait(60)
    count = held = 0
    waited = 0.0
    while min(len(row.token_ids) for row in rows) < len(PROMPT) + tokens:
        done = time.perf_counter() + pass_s
        late = wait_for_masks(rows, lambda end=done: time.perf_counter() < end)  # type: ignore[arg-type, misc]
        now = time.perf_counter()
        waited += max(0.0, now - done)
        time.sleep(max(0.0, done - now))
        ready = [row for row in rows if row.sequence_id not in late]
        for row in ready:
            row.take()
        for row in ready:
            row.follow()
        count, held = count + 1, held + len(late)
    return held / (count * len(rows)), waited / count * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--pass-ms", type=float, default=2.65)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=320)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    switch_often()
    tokenizer = Tokenizer.from_file(options.model)
    constraints = Constraints(tokenizer, tokenizer.vocab_size)

    def matcher(name: str, short: bool) -> Matcher:
        made = constraints.matcher(SCHEMAS[name])
        if not short:
            made._strings = None
        return made

    kinds = [("open", True), ("bounded", False), ("bounded", True)]
    print(f"{tokenizer.vocab_size} tokens; each mask alone, ms:")
    for name, short in kinds:
        times = mask_times(matcher(name, short), options.rounds, options.tokens)
        quantiles = [
            f"p{p} {value:.2f}" for p, value in zip(PERCENTS, np.percentile(times, PERCENTS), strict=True)
        ]
        print(
            f"  {label(name, short):<28} mean {statistics.mean(times):.3f}",
            *quantiles,
            f"most {max(times):.2f}",
        )
    told: dict[tuple[str, bool], list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for seed in range(options.rounds):
        for name, short in kinds:
            make = partial(matcher, name, short)
            rows = [Row(i, make(), np.random.default_rng([seed, i])) for i in range(options.rows)]
            told[name, short].append(passes(rows, options.pass_ms / 1e3, options.tokens))
    print(f"{options.rows} rows, passes of {options.pass_ms} ms:")
    for (name, short), found in told.items():
        held, waited = (statistics.median(column) for column in zip(*found, strict=True))
        loss = 1 - (1 - held) / (1 + waited / options.pass_ms)
        print(
            f"  {label(name, short):<28} {100 * held:.1f} % of rows held, {waited:.3f} ms waited, "
            f"{100 * loss:.1f} % less"
        )


def label(name: str, short: bool) -> str:
    return name if short else f"{name}, the library alone"


if __name__ == "__main__":
    main()
