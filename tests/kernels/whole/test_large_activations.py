"""Gated products beyond float16's range: branches and whole models against the definition in float32."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFReader
from torch import Tensor

from kernels.contract import PLAIN_BRANCH, Branch, ExpertMatrices, Operations, QuantizedMatrix, Routing
from kernels.cpu.operations import CPUOperations
from kernels.cuda.activations import SUM_WIDTH, Activations
from kernels.linear import tile_plan
from kernels.quant.dequant import dequantize
from kernels.quant.formats import GGMLType
from kernels.reference.operations import TorchOperations
from kernels.select import CPU_BLOCK_SIZE as BLOCK_SIZE
from kernels.triton_operations import TritonOperations
from tests.kernels.quant_cases import plausible_bytes, relative_error
from tests.kernels.whole.test_families import Reader
from tests.support.family_goldens import FamilyGolden
from tests.support.goldens import nmse
from tests.support.passes import Passes, load_decoder

LARGEST = 65504.0
HIDDEN, FFN = 256, 96
SCALE = 2.0**-6
LIMIT = 2e-3
NMSE_LIMIT = 1e-4


class Watched(TorchOperations):
    """The definition, which tells the largest gated product and the largest sum that met a norm."""

    product = joined = 0.0

    def gated_linear(self, x: Tensor, handle: Any) -> Tensor:
        opened = super().gated_linear(x, handle)
        self.product = max(self.product, float(opened.abs().max()) / handle.activation_scale)
        return opened

    def add_norm(self, residual, delta, norm, rows=None, branch=PLAIN_BRANCH, reader=None) -> Tensor:
        if delta is not None:
            self.joined = max(self.joined, float(delta.abs().max()) / branch.activation_scale)
        return super().add_norm(residual, delta, norm, rows, branch)


def matrix(type: GGMLType, rows: int, columns: int) -> QuantizedMatrix:
    if type == GGMLType.F32:
        raw = (torch.randn(rows, columns) * 0.01).view(torch.uint8).flatten()
    else:
        raw = plausible_bytes(type, (rows, columns), "cpu")
    return QuantizedMatrix(raw, type, (rows, columns))


def large_input(up: QuantizedMatrix, rows: int, wanted: float = 1000.0) -> Tensor:
    """float16 [rows, HIDDEN] for which up reaches what is wanted."""
    values = torch.randn(rows, HIDDEN)
    reached = torch.nn.functional.linear(values, dequantize(up.raw, up.type, up.shape)).abs().max()
    return (values * (wanted / reached)).half()


def given(ops: Operations, values: Tensor) -> Any:
    if not isinstance(ops, TritonOperations):
        return values.float()
    sums = values.float().unflatten(1, (-1, SUM_WIDTH)).sum(-1)
    return Activations(values.to(ops.device), sums.to(ops.device))


def dense_branch(
    ops: Operations, parts: Sequence[QuantizedMatrix], down: QuantizedMatrix, bias: Tensor, activation: str
) -> Any:
    """A function of the branch's input."""
    gate = ops.make_gate(parts, None, activation, SCALE)
    handle = ops.make_linear([down], bias * SCALE)
    return lambda x: ops.linear(ops.gated_linear(x, gate), handle)


def joined(ops: Operations, delta: Any, post: Tensor | None, rows: int) -> Tensor:
    """The residual stream, of zeros before."""
    residual = torch.zeros(rows, HIDDEN, device=ops.device)
    norm = None if post is None else ops.make_norm(post, 1e-6)
    ops.add_norm(residual, delta, None, branch=Branch(norm, 0.5, activation_scale=SCALE))
    return residual.cpu()


def watched() -> Watched:
    return Watched(torch.device("cpu"), "float32", "float32", BLOCK_SIZE)


BRANCHES = [
    ("rows", GGMLType.Q8_0, 3, "gelu"),
    ("up alone", GGMLType.Q6_K, 2, "relu2"),
    ("floats", GGMLType.F32, 5, "gelu"),
    ("invariant", GGMLType.Q8_0, 3, "silu"),
    ("tiles", GGMLType.Q4_K, 40, "silu"),
    ("dense", GGMLType.Q4_K, 33, "gelu"),
]
"""Each way that a product is computed in."""


@pytest.mark.parametrize(("way", "type", "rows", "activation"), BRANCHES)
def test_a_branch_is_that_of_float32(way, type, rows, activation, device, monkeypatch):
    torch.manual_seed(rows)
    if way == "dense":
        monkeypatch.setattr(tile_plan, "DENSE_ROWS", 32)
    parts = [matrix(type, FFN, HIDDEN) for _ in range(1 if way == "up alone" else 2)]
    down, bias = matrix(GGMLType.Q8_0, HIDDEN, FFN), torch.randn(HIDDEN) * LARGEST
    values = large_input(parts[-1], rows)
    plain, ops = watched(), TritonOperations(torch.device(device), "float16", way == "invariant")
    with ops.loading():
        ours = dense_branch(ops, parts, down, bias, activation)
    definition = dense_branch(plain, parts, down, bias, activation)
    for post in (None, torch.rand(HIDDEN) + 0.5):
        expected = joined(plain, definition(given(plain, values)), post, rows)
        assert plain.product > 4 * LARGEST and plain.joined > LARGEST
        assert relative_error(joined(ops, ours(given(ops, values)), post, rows), expected) < LIMIT


def test_up_itself_may_pass_the_range(device, monkeypatch):
    """In the product that is float16 before its gate; a bias alone opens that."""
    monkeypatch.setattr(tile_plan, "DENSE_ROWS", 32)
    torch.manual_seed(1)
    gate, up = matrix(GGMLType.Q8_0, FFN, HIDDEN), matrix(GGMLType.Q8_0, FFN, HIDDEN)
    gate.raw.zero_()
    up.raw.view(-1, 34)[:, :2].view(torch.float16).mul_(1000.0)
    bias, values = torch.cat([torch.linspace(-3, 3, FFN), torch.randn(FFN)]), large_input(up, 33, 1e6)
    plain, ops = watched(), TritonOperations(torch.device(device), "float16")
    with ops.loading():
        handle = ops.make_gate([gate, up], bias, "silu", SCALE)
    expected = plain.gated_linear(values.float(), plain.make_gate([gate, up], bias, "silu", SCALE))
    assert plain.product > 4 * LARGEST
    assert relative_error(ops.gated_linear(given(ops, values), handle).values.cpu(), expected) < LIMIT


EXPERTS = [(GGMLType.Q8_0, 3), (GGMLType.F32, 3), (GGMLType.Q8_0, 70)]
"""The kernel for few tokens, that for floats, and tiles."""


@pytest.mark.parametrize(("type", "tokens"), EXPERTS)
def test_experts_beside_a_shared_one_are_those_of_float32(type, tokens, device):
    torch.manual_seed(tokens)
    count, routing = 4, Routing(2, "sigmoid", True, 1.0)
    router = matrix(GGMLType.F32, count, HIDDEN)
    gate_up = [matrix(type, count * FFN, HIDDEN) for _ in range(2)]
    down_bias = torch.randn(count, HIDDEN) * LARGEST
    matrices = ExpertMatrices(
        count, router, None, gate_up, matrix(type, count * HIDDEN, FFN), down_bias=down_bias
    )
    parts, down = [matrix(type, FFN, HIDDEN) for _ in range(2)], matrix(type, HIDDEN, FFN)
    values, shared_gate = large_input(gate_up[1], tokens), matrix(GGMLType.F32, 1, HIDDEN)

    def both(ops: Operations) -> Tensor:
        with ops.loading():
            experts = ops.make_experts(matrices, routing, "silu", SCALE)
            shared = dense_branch(ops, parts, down, torch.zeros(HIDDEN), "silu")
            gate = ops.make_linear([shared_gate], None)
        x = given(ops, values)
        return joined(ops, ops.add_outputs(ops.experts(x, experts), shared(x), gate, x), None, tokens)

    plain = watched()
    expected = both(plain)
    assert plain.product > 4 * LARGEST and plain.joined > LARGEST
    assert relative_error(both(TritonOperations(torch.device(device), "float16")), expected) < LIMIT


GROWN = ("ffn_gate.", "ffn_up.", "_gate_exps.", "_up_exps.", "_gate_shexp.", "_up_shexp.")
TIMES = 300.0


def large_model(golden: FamilyGolden, folder: Path) -> Path:
    """With the rows of gate and up times 300."""
    path = golden.write_model(folder)
    reader = GGUFReader(str(path), "r+")
    for tensor in reader.tensors:
        if any(part in tensor.name for part in GROWN):
            tensor.data[...] *= TIMES
    reader.data.flush()
    return path


@pytest.mark.parametrize("name", ["gemma3", "gemma2", "glm4moe", "glm4"])
def test_models_of_large_activations_are_those_of_float32(name: str, device: str, tmp_path: Path):
    golden = FamilyGolden.load(name)
    path = large_model(golden, tmp_path)
    plain, counts = watched(), (6, 1)
    passes = Passes(load_decoder(path, plain), {"a": golden.tokens})
    beside = Passes(
        load_decoder(path, CPUOperations(torch.device("cpu"), "float32", "float32", BLOCK_SIZE)),
        {"a": golden.tokens},
    )
    reader = Reader(load_decoder(path, TritonOperations(torch.device(device), "float16")), golden.tokens)
    for count in counts:
        passes.run(("a", count))
        beside.run(("a", count))
        expected = passes.logits["a"].numpy()
        assert nmse(beside.logits["a"].numpy(), expected) < 1e-8
        assert nmse(reader.read(count).numpy(), expected) < NMSE_LIMIT
    reader.kv.close()
    assert plain.product > 4 * LARGEST and plain.joined > LARGEST
