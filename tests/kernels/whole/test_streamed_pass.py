"""Prompts that a GPU reads with the processor's weights give what the processor and one device alone give.

The GPU's kernels are interpreted where there is none.
"""

import pytest
import torch
from torch import Tensor

from engine.model.decoder import finish
from engine.model.placement import Placement
from engine.model.split_decoder import SplitDecoder
from kernels.contract import PassLayout
from kernels.triton_operations import TritonOperations
from tests.support.family_goldens import FamilyGolden
from tests.support.goldens import nmse
from tests.support.passes import Passes, load_decoder, load_split
from tests.support.tiny_gguf import make_tiny

LIMIT = 1e-4
"""NMSE of logits, as `test_split_models` has it: activations are float16 on the GPU."""


class Streamed(Passes):
    """Reads chunks as `SplitRunner` does where they are long."""

    decoder: SplitDecoder

    @torch.inference_mode()
    def forward(self, ids: Tensor, layouts: list[PassLayout], rows: Tensor) -> Tensor:
        if len(ids) < 3:
            return super().forward(ids, layouts, rows)
        return finish(self.decoder.read(ids, layouts, self.kv.groups, rows))

    def open(self) -> None:
        self.decoder.open_visits(self.kv.groups)

    @torch.inference_mode()
    def leave(self) -> None:
        """A pass over scratch pages, of which one layer is computed."""
        layout = PassLayout([4], [4], [[0]], 0, torch.arange(4), torch.arange(4))
        layouts = [layout] * len(self.kv.groups)
        next(self.decoder.read(torch.arange(20, 24), layouts, self.kv.groups, torch.zeros(1)))


@pytest.fixture(scope="module", params=["dense", "experts"])
def decoders(request, tmp_path_factory, device):
    folder = tmp_path_factory.mktemp("models")
    if request.param == "dense":
        sizes = {"width": 64, "ffn": 128, "heads": 2, "kv_heads": 1, "head_dim": 32}
        path = make_tiny(folder / "tiny.gguf", "qwen3", layers=3, quant="Q8_0", seed=5, **sizes)
        placement = Placement(layers=2)
    else:
        path = FamilyGolden.load("qwen3moe-q8_0").write_model(folder)
        placement = Placement(experts=99)
    split = load_split(path, placement, TritonOperations(torch.device(device), "float32"))
    yield load_decoder(path), split
    split.close()


def test_chunks_behind_one_another_and_what_follows(decoders):
    whole, split = decoders
    assert split.streams
    generator = torch.Generator().manual_seed(3)
    ids = {
        name: torch.randint(10, whole.config.vocab_size - 20, (count,), generator=generator).tolist()
        for name, count in (("a", 40), ("b", 9))
    }
    passes = [Passes(whole, dict(ids)), Passes(split, dict(ids)), Streamed(split, dict(ids))]
    passes[2].open()
    for one in passes:
        one.run(("a", 33))
        one.run(("a", 7), ("b", 8))
    for name in ("a", "b"):
        expected, computed, streamed = (one.logits[name].cpu() for one in passes)
        assert nmse(computed.numpy(), expected.numpy()) <= LIMIT
        assert nmse(streamed.numpy(), expected.numpy()) <= LIMIT
    for one in passes:
        # The processor reads what the GPU has written of its layers' KV.
        one.run(("b", 1))
    assert nmse(passes[2].logits["b"].cpu().numpy(), passes[0].logits["b"].numpy()) <= LIMIT


def test_a_pass_that_was_left_begins_anew(decoders):
    _, split = decoders
    passes = Streamed(split, {"a": list(range(20, 32)), "b": list(range(20, 32))})
    passes.open()
    passes.run(("a", 12))
    passes.leave()
    passes.run(("b", 12))
    assert torch.equal(passes.logits["a"], passes.logits["b"])
