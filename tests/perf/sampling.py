"""Milliseconds of the processor that choosing the next tokens takes, by kind of sampling.

    python -m tests.perf.sampling [--vocab 49152 151936] [--rows 1 8]

One thread, and its time, not the clock's: other programs may run. Logits as a trained model has them: fifty
tokens far above the others.
"""

import argparse
import time

import torch

from engine import SamplingParams
from engine.api.request import Request
from engine.runner.sampler import sample_rows
from engine.scheduler.sequence import Sequence

KINDS = {
    "greedy": SamplingParams(temperature=0.0),
    "top-k 40, top-p, min-p": SamplingParams(temperature=0.7, top_k=40, top_p=0.95, min_p=0.05),
    "top-p alone": SamplingParams(temperature=0.7, top_k=0, top_p=0.95, min_p=0.0),
    "top-p, min-p": SamplingParams(temperature=0.7, top_k=0, top_p=0.95, min_p=0.05),
    "all tokens": SamplingParams(temperature=0.7, top_k=0, top_p=1.0, min_p=0.0),
}
CALLS = 200


def logits(rows: int, vocab: int) -> torch.Tensor:
    """float32 [rows, vocab]."""
    generator = torch.Generator().manual_seed(0)
    made = torch.randn(rows, vocab, generator=generator) * 2 - 4
    made[:, torch.randint(0, vocab, (50,), generator=generator)] += torch.linspace(14, 4, 50)
    return made


def median_ms(given: torch.Tensor, params: SamplingParams) -> float:
    """Of one call for all rows."""
    made = [
        Sequence(number, 1, Request((1, 2, 3), params), arrival=0.0, seed=number)
        for number in range(len(given))
    ]
    times = []
    for call in range(CALLS):
        for one in made:
            one.seed = call * len(made) + one.sequence_id
        started = time.thread_time()
        sample_rows(given, made)
        times.append(time.thread_time() - started)
    return sorted(times)[CALLS // 2] * 1e3


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vocab", type=int, nargs="+", default=[49_152, 151_936])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    options = parser.parse_args()
    torch.set_num_threads(1)
    for vocab in options.vocab:
        for rows in options.rows:
            given = logits(rows, vocab)
            for name, params in KINDS.items():
                print(
                    f"{vocab:7,} tokens, {rows} rows, {name:<24} {median_ms(given, params):8.2f} ms",
                    flush=True,
                )


if __name__ == "__main__":
    main()
