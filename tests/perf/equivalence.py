"""Whether a row's logits depend on what is beside it, at real sizes: packed, chunked, batched.

    python -m tests.perf.equivalence --device cuda --model FILE [--chunk 512] [--batch-independent]

Three equivalences, of prompts one token below, at and above a chunk: prompts packed into one pass against
each alone, a prompt in chunks against the whole, and rows decoded together after a packed prefill against
each alone. Prints NMSE of the last logits and whether their bits are equal; ends with 1 where the NMSE is
over `TOLERANCE`, or, with --batch-independent, where a bit differs.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from engine.model.decoder import Decoder
from engine.runner.model_kv import ModelKV
from kernels.contract import PassLayout
from kernels.triton_operations import TritonOperations
from tests.support.passes import load_decoder, open_kv

TOLERANCE = 1e-5
"""Largest NMSE of the normal mode: sums are rounded to float16 between kernels in another order."""
STEPS = 8


class Rows:
    """Sequences whose KV has blocks of its own each, read in any spans."""

    def __init__(self, decoder: Decoder, kv: ModelKV, tokens: dict[str, list[int]]) -> None:
        self.decoder, self.kv, self.tokens = decoder, kv, tokens
        size, free = decoder.ops.block_size, iter(range(1, kv_blocks(decoder, tokens)))
        self.tables = {
            name: [next(free) for _ in range(-(-len(ids) // size))] for name, ids in tokens.items()
        }

    def read(self, *spans: tuple[str, int, int], decode: int = 0) -> dict[str, Tensor]:
        """One pass of spans (name, first token, count); logits of each one's last token, as partial sums."""
        size = self.decoder.ops.block_size
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        last: list[int] = []
        for name, start, count in spans:
            places = range(start, start + count)
            ids += self.tokens[name][start : start + count]
            positions += places
            slots += [self.tables[name][at // size] * size + at % size for at in places]
            last.append(len(ids) - 1)
        layout = PassLayout(
            [count for _, _, count in spans],
            [start + count for _, start, count in spans],
            [self.tables[name] for name, _, _ in spans],
            decode,
            torch.tensor(positions),
            torch.tensor(slots),
        )
        device = self.decoder.ops.device
        with torch.inference_mode():
            layouts = self.kv.by_group([layout] * self.kv.num_pools)
            prepared = self.decoder.ops.prepare(layouts, self.kv.groups, self.decoder.rotations)
            rows = torch.tensor(last, dtype=torch.int32, device=device)
            logits = self.decoder.run(torch.tensor(ids, device=device), prepared, rows)
        return {name: logits[:, row].clone() for row, (name, _, _) in enumerate(spans)}


def kv_blocks(decoder: Decoder, tokens: dict[str, list[int]]) -> int:
    """As many as all sequences need, and the one that nobody has."""
    return 1 + sum(-(-len(ids) // decoder.ops.block_size) for ids in tokens.values())


def packed(rows: Rows, chunk: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Four prompts in one pass, and each alone."""
    lengths = {"a": chunk - 1, "b": chunk, "c": chunk + 1, "d": 37}
    together = rows.read(*((name, 0, length) for name, length in lengths.items()))
    for name, length in lengths.items():
        alone = rows.read((name, 0, length))[name]
        yield f"{length} tokens packed with three others", together[name], alone


def chunked(rows: Rows, chunk: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    """A prompt of two chunks and a token, cut at a chunk and a token beside it."""
    length = 2 * chunk + 1
    whole = rows.read(("long", 0, length))["long"]
    for cut in (chunk - 1, chunk, chunk + 1):
        rows.read(("long", 0, cut))
        yield f"{length} tokens cut at {cut}", rows.read(("long", cut, length - cut))["long"], whole


def batched(rows: Rows, chunk: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Rows decoded together after a packed prefill, and each alone."""
    lengths = {"a": chunk - 1, "b": chunk, "c": chunk + 1, "d": 37}
    alone: dict[str, list[Tensor]] = {}
    for name, length in lengths.items():
        rows.read((name, 0, length))
        alone[name] = [rows.read((name, length + step, 1), decode=1)[name] for step in range(STEPS)]
    rows.read(*((name, 0, length) for name, length in lengths.items()))
    for step in range(STEPS):
        spans = [(name, length + step, 1) for name, length in lengths.items()]
        together = rows.read(*spans, decode=len(spans))
        for name in lengths:
            yield f"decode step of 4 rows, {lengths[name]} before", together[name], alone[name][step]


def nmse(actual: Tensor, expected: Tensor) -> float:
    """Of logits given as partial sums."""
    ours, theirs = actual.double().sum(0), expected.double().sum(0)
    return float(((ours - theirs) ** 2).sum() / (theirs**2).sum())


def measure(model: Path, device: str, chunk: int, batch_independent: bool) -> dict[str, dict[str, object]]:
    """By equivalence: the largest NMSE, and whether all bits are equal."""
    ops = TritonOperations(torch.device(device), "float16", batch_independent=batch_independent)
    decoder = load_decoder(model, ops)
    generator = torch.Generator().manual_seed(1)
    lengths = {"a": chunk - 1, "b": chunk, "c": chunk + 1, "d": 37, "long": 2 * chunk + 1}
    tokens = {
        name: torch.randint(10, decoder.config.vocab_size, (length + STEPS,), generator=generator).tolist()
        for name, length in lengths.items()
    }
    rows = Rows(decoder, open_kv(decoder, kv_blocks(decoder, tokens)), tokens)
    figures: dict[str, dict[str, object]] = {}
    for kind in (packed, chunked, batched):
        found = list(kind(rows, chunk))
        worst = max(found, key=lambda one: nmse(one[1], one[2]))
        figures[kind.__name__] = {
            "compared": len(found),
            "nmse": nmse(worst[1], worst[2]),
            "worst": worst[0],
            "equal_bits": all(torch.equal(one, other) for _, one, other in found),
        }
    return figures


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--batch-independent", action="store_true")
    args = parser.parse_args()
    figures = measure(args.model, args.device, args.chunk, args.batch_independent)
    print(json.dumps({"model": args.model.name, "batch_independent": args.batch_independent, **figures}))
    if args.batch_independent:
        sys.exit(not all(one["equal_bits"] for one in figures.values()))
    sys.exit(not all(float(str(one["nmse"])) <= TOLERANCE for one in figures.values()))


if __name__ == "__main__":
    main()
