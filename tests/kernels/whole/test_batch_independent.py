"""A token's logits depend on its context alone, bit by bit: not on other rows, cuts, or padding."""

import pytest
import torch
from torch import Tensor

from engine.model.decoder import Decoder
from kernels import triton_operations
from kernels.contract import PassLayout
from kernels.triton_operations import TritonOperations
from tests.support.passes import load_decoder, open_kv
from tests.support.tiny_gguf import make_tiny

BLOCK_SIZE = 16
SIZES = {"width": 64, "ffn": 64, "heads": 2, "kv_heads": 1, "head_dim": 32}
BLOCKS = {"a": [3, 1], "b": [5, 2], "c": [4, 6], "again": [8, 7]}
"""Pages of each sequence, not in order."""


class Passes:
    """Packed passes of a few sequences over one KV; a span is (sequence, its tokens so far, new ones)."""

    def __init__(self, decoder: Decoder, tokens: dict[str, list[int]]) -> None:
        self.decoder, self.tokens = decoder, tokens
        self.kv = open_kv(decoder, 10)

    def run(self, *spans: tuple[str, int, int], decode: int = 0) -> dict[str, Tensor]:
        """Logits, as partial sums, of the last token of each span; the first `decode` spans are rows."""
        ids, positions, slots, last = [], [], [], []
        for name, start, count in spans:
            places = range(start, start + count)
            ids += self.tokens[name][start : start + count]
            positions += places
            slots += [BLOCKS[name][at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE for at in places]
            last.append(len(ids) - 1)
        device = self.decoder.ops.device
        layout = PassLayout(
            [count for _, _, count in spans],
            [start + count for _, start, count in spans],
            [BLOCKS[name] for name, _, _ in spans],
            decode,
            torch.tensor(positions),
            torch.tensor(slots),
        )
        with torch.inference_mode():
            layouts = self.kv.by_group([layout])
            prepared = self.decoder.ops.prepare(layouts, self.kv.groups, self.decoder.rotations)
            rows = torch.tensor(last, dtype=torch.int32, device=device)
            logits = self.decoder.run(torch.tensor(ids, device=device), prepared, rows)
        return {name: logits[:, row].clone() for row, (name, _, _) in enumerate(spans)}


def same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.view(torch.int32), other.view(torch.int32))


@pytest.mark.parametrize(("quant", "kv_dtype"), [("Q8_0", "float16"), ("F16", "q8_0")])
def test_a_row_has_the_same_bits_whatever_is_beside_it(quant, kv_dtype, device, tmp_path, monkeypatch):
    # Few tokens cross pages of the least size: an interpreter computes token by token.
    monkeypatch.setattr(triton_operations, "BLOCK_SIZE", BLOCK_SIZE)
    ops = TritonOperations(torch.device(device), kv_dtype, batch_independent=True)
    decoder = load_decoder(make_tiny(tmp_path / "tiny.gguf", "qwen3", quant=quant, seed=3, **SIZES), ops)
    generator = torch.Generator().manual_seed(1)
    tokens = {
        name: torch.randint(10, 300, (count,), generator=generator).tolist()
        for name, count in (("a", 19), ("b", 4), ("c", 7))
    }
    tokens["again"] = tokens["a"]
    passes = Passes(decoder, tokens)
    whole = passes.run(("a", 0, 17))["a"]
    alone = passes.run(("a", 17, 1), decode=1)["a"]
    # Its pages written again, the prompt cut elsewhere and read beside a decode row and another prompt.
    passes.run(("a", 0, 14), ("b", 0, 3))
    beside = passes.run(("b", 3, 1), ("a", 14, 3), ("c", 0, 6), decode=1)
    assert same(beside["a"], whole)
    batched = passes.run(("c", 6, 1), ("b", 3, 1), ("a", 17, 1), decode=3)
    assert same(batched["a"], alone)
    # Read again as a prompt, after its KV was lost: what decoding had computed; and a row beside it.
    riding = passes.run(("a", 17, 1), ("again", 0, 18), decode=1)
    assert same(riding["a"], alone)
    assert same(riding["again"], alone)
