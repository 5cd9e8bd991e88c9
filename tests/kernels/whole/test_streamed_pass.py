"""Prompts that a GPU reads with the processor's weights give what the processor and one device alone give.

The GPU's kernels are interpreted where there is none.
"""

import pytest
import torch
from torch import Tensor

from engine.model.decoder import finish
from engine.model.split.placement import Placement
from engine.model.split.split_decoder import SplitDecoder
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
        layout = PassLayout([2], [2], [[0]], 0, torch.arange(2), torch.arange(2))
        layouts = [layout] * len(self.kv.groups)
        next(self.decoder.read(torch.arange(20, 22), layouts, self.kv.groups, torch.zeros(1)))


@pytest.fixture(scope="module", params=["dense", "experts"])
def decoders(request, tmp_path_factory, device):
    folder = tmp_path_factory.mktemp("models")
    if request.param == "dense":
        sizes = {"width": 64, "ffn": 64, "heads": 2, "kv_heads": 1, "head_dim": 32}
        path = make_tiny(folder / "tiny.gguf", "qwen3", layers=2, quant="Q8_0", seed=5, **sizes)
        placement = Placement(layers=1)
    else:
        path = FamilyGolden.load("qwen3moe-q8_0").write_model(folder)
        placement = Placement(experts=99)
    split = load_split(path, placement, TritonOperations(torch.device(device), "float32"))
    yield load_decoder(path), split
    split.close()


def test_chunks_behind_one_another_and_what_follows(decoders):
    whole, split = decoders
    assert split.streams
    ids = {"a": list(range(20, 29)), "b": [40, 70, 41, 90, 42]}
    one, other = Passes(whole, dict(ids)), Streamed(split, dict(ids))
    other.open()
    for passes in (one, other):
        passes.run(("a", 5))
    # One that is given up half-way leaves nothing behind.
    other.leave()
    for passes in (one, other):
        passes.run(("a", 4), ("b", 4))
    for name in ("a", "b"):
        assert nmse(other.logits[name].cpu().numpy(), one.logits[name].numpy()) <= LIMIT
    for passes in (one, other):
        # The processor reads what the GPU has written of its layers' KV.
        passes.run(("b", 1))
    assert nmse(other.logits["b"].cpu().numpy(), one.logits["b"].numpy()) <= LIMIT
