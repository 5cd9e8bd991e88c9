"""Compiled CPU kernels against the definition: quantised weights, norms, attention over paged KV."""

import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("llvmlite")

from app.models.builtin import builtin_model_path
from kernels.contract import Branch, LayerAttention, PassLayout, QuantizedMatrix, Rotation
from kernels.cpu import activations, operations
from kernels.cpu.block_readers import READERS
from kernels.cpu.dots import Dots, host_dots, usable_dots
from kernels.cpu.operations import CPUOperations
from kernels.cpu.packed import kinds, products, values
from kernels.quant.dequant import dequantize
from kernels.quant.formats import FORMATS, GGMLType
from kernels.reference import operations as reference_operations
from kernels.reference.gate import gate
from kernels.reference.operations import TorchOperations
from kernels.reference.paged_kv import LayerKV
from kernels.select import operations_for
from tests.kernels.quant_cases import plausible_bytes
from tests.support.passes import Passes, load_decoder

CPU = torch.device("cpu")
AFFINE = [type.name for type in READERS]
HALVES = [name for name in AFFINE if name != "MXFP4"]
"""Those with float16 scales."""


def matrix(type: GGMLType, rows: int, columns: int, seed: int = 0, order: bool = False) -> QuantizedMatrix:
    """Random blocks with scales near 0.01."""
    rng = np.random.default_rng(seed)
    block = FORMATS[type]
    raw = rng.integers(0, 256, (rows * columns // block.elements, block.nbytes), dtype=np.uint8)
    raw[:, 0] = rng.integers(112, 124, len(raw))
    halves = {"MXFP4": (), "Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2)}
    default = (0, 2) if type.name in ("Q4_K", "Q5_K") else (0,)
    for at in halves.get(type.name, default):
        scale = rng.uniform(0.005, 0.015, len(raw)).astype(np.float16)
        raw[:, at : at + 2] = scale[:, None].view(np.uint8)
    row_order = torch.from_numpy(rng.permutation(rows)) if order else None
    return QuantizedMatrix(torch.from_numpy(raw).view(-1), type, (rows, columns), row_order)


def plain(parts: list[QuantizedMatrix]) -> torch.Tensor:
    values = [dequantize(part.raw, part.type, part.shape) for part in parts]
    return torch.cat(
        [v if p.row_order is None else v[p.row_order] for v, p in zip(values, parts, strict=True)]
    )


def relative(ours: torch.Tensor, expected: torch.Tensor) -> float:
    return float((ours.double() - expected.double()).norm() / expected.double().norm())


EXACT, ROUNDED = 2e-6, 3e-4
"""Errors of products with float32 activations, and with those of 15 bits."""


SOME_ROWS = [(name, 1) for name in AFFINE] + [("Q4_K", rows) for rows in (2, 3, 7, 8, 11, 70)]


@pytest.mark.parametrize("weight_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "rows"), SOME_ROWS)
def test_a_packed_product_equals_plain(name: str, rows: int, weight_dtype: str):
    """Beside another type; a few columns of x outweigh the rest, as they do in models."""
    parts = [matrix(GGMLType[name], 96, 512, order=True), matrix(GGMLType.Q5_K, 32, 512, seed=1)]
    bias, ops = torch.randn(128), CPUOperations(CPU, weight_dtype, "float32", 32)
    ops._packed_rows = rows
    x = torch.randn(rows, 512) * torch.rand(512).mul(5).exp()
    expected = F.linear(x.double(), plain(parts).double(), bias.double())
    limit = EXACT if weight_dtype == "float32" else ROUNDED
    assert relative(ops.linear(x, ops.make_linear(parts, bias)), expected) < limit


@pytest.mark.parametrize(("activation", "rows", "types"), [
    *((activation, 6, ("Q4_K", "Q4_K")) for activation in ("silu", "gelu", "swiglu_oai", "relu2")),
    ("silu", 1, ("Q4_K", "Q4_K")), ("silu", 40, ("Q4_K", "Q4_K")), ("gelu", 6, ("Q4_K", "Q6_K")),
])  # fmt: skip
def test_a_packed_gate_equals_plain(activation: str, rows: int, types: tuple[str, str]):
    """Part of the product where gate and up are of one type."""
    parts = [matrix(GGMLType[name], 64, 256, seed=seed) for seed, name in enumerate(types)]
    bias, x = torch.cat([torch.linspace(-120, 120, 64), torch.randn(64)]), torch.randn(rows, 256)
    ops = CPUOperations(CPU, "float32", "float32", 32)
    product = F.linear(x.double(), plain(parts).double(), bias.double())
    got = ops.gated_linear(x, ops.make_gate(parts, bias, activation))
    assert relative(got, gate(product, activation)) < EXACT


def matrix_of_any(name: str, rows: int) -> QuantizedMatrix:
    raw = plausible_bytes(GGMLType[name], (rows, 256), "cpu")
    if name == "F16":
        raw = torch.randn(rows, 256).half().view(torch.uint8).flatten()
    if name == "IQ2_XS":
        raw.view(-1, 74)[:, :2] = torch.tensor([0.01]).half().view(torch.uint8)
    return QuantizedMatrix(raw, GGMLType[name], (rows, 256))


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("sizes", [(48, 16, 64), (5, 33, 20)])
def test_matrices_of_any_rows_are_stacked(sizes: tuple[int, ...], rows: int):
    """Of one type, of several and of one that has no packed form; biases go with their rows."""
    ops = CPUOperations(CPU, "float32", "float32", 32)
    x, bias = torch.randn(rows, 256), torch.randn(sum(sizes))
    for types in (("Q8_0", "Q8_0", "Q8_0"), ("Q4_K", "F16", "Q4_K"), ("IQ2_XS", "Q5_0", "IQ2_XS")):
        parts = [matrix_of_any(name, size) for name, size in zip(types, sizes, strict=True)]
        got = ops.linear(x, ops.make_linear(parts, bias))
        assert got.is_contiguous()
        assert relative(got, F.linear(x.double(), plain(parts).double(), bias.double())) < EXACT


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_activations_that_are_not_finite_are_not_hidden(value: float):
    """Neither are other rows touched."""
    ops = CPUOperations(CPU, "bfloat16", "bfloat16", 32)
    handle = ops.make_linear([matrix(GGMLType.Q4_K, 32, 256)], None)
    x = torch.randn(3, 256)
    expected = ops.linear(x, handle)
    x[1, 40] = value
    got = ops.linear(x, handle)
    assert not got[1].isfinite().any() and torch.equal(got[::2], expected[::2])


def test_activations_without_size_give_nothing():
    ops = CPUOperations(CPU, "bfloat16", "bfloat16", 32)
    handle = ops.make_linear([matrix(GGMLType.Q4_1, 32, 256)], None)
    x = torch.zeros(2, 256)
    x[1] = 1e-38
    assert ops.linear(x, handle).abs().max() < 1e-30


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("dots", Dots)
def test_every_way_to_multiply_gives_the_same(dots: Dots, blocks: bool, monkeypatch):
    """Sums of whole numbers are exact: of those that this processor has, by blocks of rows and without."""
    if dots not in usable_dots():
        pytest.skip("not on this processor")
    monkeypatch.setattr(products, "MOST_ROWS", 2)
    ops, x = CPUOperations(CPU, "bfloat16", "bfloat16", 32), torch.randn(5, 256) * 3
    results = []
    for one, by_blocks in ((host_dots(), False), (dots, blocks)):
        monkeypatch.setattr(products, "MORE_IN_BLOCKS", by_blocks)
        for module in (kinds, activations, values):
            monkeypatch.setattr(module, "host_dots", lambda one=one: one)
        parts = [matrix(GGMLType[name], 32, 256) for name in ("Q8_0", "Q6_K", "IQ4_XS", "MXFP4")]
        results.append([ops.linear(x, ops.make_linear([part], None)) for part in parts])
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_a_gates_scale_is_undone_where_its_branch_joins(activation: str, rows: int):
    """Of few rows, whose products are compiled, and of many; behind a norm and without one."""
    parts = [matrix(GGMLType.Q4_K, 64, 256, seed=seed) for seed in range(2)]
    down, bias = matrix(GGMLType.Q5_K, 64, 64 * 4, seed=2), torch.randn(64)
    x, post = torch.randn(rows, 256), torch.rand(64) + 0.5
    for kind in (CPUOperations, TorchOperations):
        ops, joined = kind(CPU, "float32", "float32", 32), []
        for scale in (1.0, 2.0**-6):
            opened = ops.gated_linear(x, ops.make_gate(parts, None, activation, scale))
            delta = ops.linear(opened.repeat(1, 4), ops.make_linear([down], bias * scale))
            for norm in (None, ops.make_norm(post, 1e-3)):
                residual = torch.ones(rows, 64)
                ops.add_norm(residual, delta, None, branch=Branch(norm, 0.25, activation_scale=scale))
                joined.append(residual)
        assert relative(opened * 64, ops.gated_linear(x, ops.make_gate(parts, None, activation))) < 1e-6
        assert relative(joined[2], joined[0]) < 1e-6 and relative(joined[3], joined[1]) < 1e-6


def test_short_prompts_attend_in_bfloat16_between_quantised_products():
    """Torch's attention hands bfloat16 to a product that reads float32."""
    passes = {}
    for kind in (CPUOperations, TorchOperations):
        decoder = load_decoder(builtin_model_path(), kind(CPU, "bfloat16", "bfloat16", 32))
        passes[kind] = Passes(decoder, {"a": list(range(100, 107))}, scattered=False)
        passes[kind].run(("a", 7))
    ours, definition = (passes[kind].logits["a"] for kind in (CPUOperations, TorchOperations))
    assert relative(ours, definition) < 0.05


@pytest.mark.parametrize(("wide", "dots", "expected"), [
    (True, Dots.BYTES_512, ["float32", "bfloat16"]), (False, Dots.BYTES_256, []),
    (False, Dots.WORDS_256, []), (False, Dots.PLAIN, ["auto", "float32", "bfloat16"]),
])  # fmt: skip
def test_many_rows_go_to_torch_where_it_is_faster(wide, dots, expected, monkeypatch):
    """Where registers are wide never where it would multiply in float32 by its own choice."""
    monkeypatch.setattr(operations, "wide_registers", lambda: wide)
    monkeypatch.setattr(operations, "host_dots", lambda: dots)
    part, x = matrix(GGMLType.Q4_K, 32, 256), torch.randn(100, 256)
    asked = []
    monkeypatch.setattr(operations, "many_rows", lambda x, *_: asked.append((dtype, len(x))))
    monkeypatch.setattr(reference_operations, "fastest_weight_dtype", lambda *_: torch.float32)
    for dtype in ("auto", "float32", "bfloat16"):
        ops = CPUOperations(CPU, dtype, "float32", 32)
        handle = ops.make_linear([part], None)
        for rows in (1, ops.few_tokens, 100):
            ops.linear(x[:rows], handle)
    assert asked == [(dtype, 100) for dtype in expected]


@pytest.mark.parametrize("weight_dtype", ["float32", "bfloat16"])
def test_a_row_does_not_depend_on_the_others(weight_dtype: str):
    ops = CPUOperations(CPU, weight_dtype, "float32", 32)
    handle = ops.make_linear([matrix(GGMLType.Q5_K, 64, 256)], None)
    x = torch.randn(8, 256)
    together = ops.linear(x, handle)
    assert all(torch.equal(ops.linear(x[i : i + 1], handle)[0], together[i]) for i in range(8))


@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("added", [False, True])
def test_norm_equals_definition(rows: int, added: bool):
    ours, definition = (kind(CPU, "float32", "float32", 32) for kind in (CPUOperations, TorchOperations))
    norm = ours.make_norm(torch.randn(96), 1e-5)
    residual, delta = torch.randn(rows, 96), torch.randn(rows, 96) if added else None
    one, two = residual.clone(), residual.clone()
    assert relative(ours.add_norm(one, delta, norm), definition.add_norm(two, delta, norm)) < 1e-6
    assert torch.equal(one, two)
    chosen = torch.tensor([rows - 1])
    got = ours.add_norm(one.clone(), delta, norm, chosen)
    assert relative(got, definition.add_norm(two.clone(), delta, norm, chosen)) < 1e-6


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("dim", [16, 80, 96, 128])
@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "float16", "q8_0"])
def test_attention_equals_definition(kv_dtype: str, dim: int, normed: bool):
    torch.manual_seed(dim)
    contexts, kv_heads, q_heads = [1, 16, 17, 33, 70], 2, 6
    rows = len(contexts)
    numbers = (torch.randperm(40) + 1).tolist()
    tables = [[numbers.pop() for _ in range(-(-context // 16))] for context in contexts]
    slots = [table[(c - 1) // 16] * 16 + (c - 1) % 16 for table, c in zip(tables, contexts, strict=True)]
    layout = PassLayout([1] * rows, contexts, tables, rows, torch.tensor(contexts) - 1, torch.tensor(slots))
    rotation = Rotation(torch.rand(dim // 2, dtype=torch.float64), 1.0, "adjacent")
    qkv = torch.randn(rows, (q_heads + 2 * kv_heads) * dim)
    earlier = torch.full((2 * kv_heads, 41 * 16, dim), float("nan"))
    for table, context in zip(tables, contexts, strict=True):
        for position in range(context - 1):
            slot = table[position // 16] * 16 + position % 16
            earlier[:, slot] = torch.randn(2 * kv_heads, dim)
    results, written = [], []
    for kind in (CPUOperations, TorchOperations):
        ops = kind(CPU, "float32", kv_dtype, 16)
        kv = ops.make_kv(1, 41, kv_heads, dim)
        fill(kv.layers[0], earlier)
        norm = ops.make_norm(torch.ones(q_heads + kv_heads, dim) * 1.5, 1e-6) if normed else None
        prepared = ops.prepare([layout], [kv], [rotation])
        results.append(ops.attend(qkv.clone(), prepared, 0, LayerAttention(0, dim**-0.5, qk_norm=norm)))
        written.append(kv.layers[0].read(torch.tensor(slots), torch.float32))
    # The last digit of a float32 may round a quant the other way.
    assert relative(*results) < (2e-6 if kv_dtype == "float32" else 1e-3)
    assert relative(*written) < (1e-6 if kv_dtype == "float32" else 1e-3)


def fill(layer: LayerKV, values: torch.Tensor) -> None:
    """All slots as they are stored, NaN where nothing is; scratch 0."""
    layer.write(torch.arange(values.shape[1]), values)
    (layer.values if layer.scales is None else layer.scales)[:, :16] = 0


@pytest.mark.parametrize(("dim", "heads"), [(64, (1, 1)), (80, (2, 6)), (128, (2, 16)), (256, (1, 4))])
@pytest.mark.parametrize("prompt", [False, True])
def test_quantised_pages_lose_what_eight_bits_lose(prompt: bool, dim: int, heads: tuple[int, int]):
    """A quant is off by at most half a step of a 127th of its group's largest: 0.5 % of normal values."""
    torch.manual_seed(dim)
    (kv_heads, q_heads), length = heads, 70
    rotation = Rotation(torch.rand(dim // 2, dtype=torch.float64), 1.0, "adjacent")
    made = torch.randn(length, (q_heads + 2 * kv_heads) * dim)
    results, stored = [], []
    for kv_dtype in ("q8_0", "float32"):
        ops = CPUOperations(CPU, "float32", kv_dtype, 16)
        kv = ops.make_kv(1, 7, kv_heads, dim)
        for first, end in [(0, length)] if prompt else [(0, length - 1), (length - 1, length)]:
            slots = torch.arange(first, end)
            decode = int(end - first == 1)
            layout = PassLayout([end - first], [end], [[1, 2, 3, 4, 5]], decode, slots, slots + 16)
            prepared = ops.prepare([layout], [kv], [rotation])
            result = ops.attend(made[first:end].clone(), prepared, 0, LayerAttention(0, dim**-0.5))
        results.append(result)
        stored.append(kv.layers[0].read(slice(16, 16 + length), torch.float32))
    assert 1e-4 < relative(*stored) < 7e-3
    steps = kv_steps(stored[1])
    assert ((stored[0] - stored[1]).abs() <= steps * 0.501).all()
    assert 1e-4 < relative(*results) < 1.5e-2


def kv_steps(values: torch.Tensor) -> torch.Tensor:
    """What a quant of each value stands for."""
    dim = values.shape[-1]
    groups = torch.nn.functional.pad(values, (0, -dim % 32)).unflatten(-1, (-1, 32))
    return (groups.abs().amax(-1, keepdim=True) / 127).expand_as(groups).flatten(-2)[..., :dim]


@pytest.mark.parametrize("groups", range(1, 10))
def test_heads_that_share_keys_have_the_bits_of_each_alone(groups: int, monkeypatch: pytest.MonkeyPatch):
    """One thread takes them all together, as many threads as heads one each."""
    torch.manual_seed(groups)
    dim, context = 48, 75
    ops = CPUOperations(CPU, "float32", "float16", 16)
    kv = ops.make_kv(1, 7, 1, dim)
    kv.layers[0].write(torch.arange(7 * 16), torch.randn(2, 7 * 16, dim))
    rotation = Rotation(torch.rand(dim // 2, dtype=torch.float64), 1.0, "adjacent")
    at, sinks = torch.tensor([context - 1]), torch.linspace(-1, 2, groups)
    layout = PassLayout([1], [context], [[1, 3, 2, 5, 4]], 1, at, at % 16 + 64)
    qkv, results = torch.randn(1, (groups + 2) * dim), []
    for threads in (1, groups):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        prepared = ops.prepare([layout], [kv], [rotation])
        attention = LayerAttention(0, 0.3, window=70, softcap=20.0, sinks=sinks)
        results.append(ops.attend(qkv.clone(), prepared, 0, attention))
    assert torch.equal(*results)
    definition = TorchOperations(CPU, "float32", "float16", 16)
    prepared = definition.prepare([layout], [kv], [rotation])
    assert relative(results[0], definition.attend(qkv, prepared, 0, attention)) < 2e-6


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "q8_0"])
@pytest.mark.parametrize("kind", [CPUOperations, TorchOperations])
def test_tokens_of_one_pass_attend_as_one_by_one(kind: type[TorchOperations], kv_dtype: str):
    """A sequence's drafts, beside rows without any; block borders at 16 and 32."""
    torch.manual_seed(3)
    dim, kv_heads, q_heads, lens, ends = 64, 2, 4, [1, 6, 1, 4], [20, 35, 230, 16]
    tables = [[4 * i + j + 1 for j in range(3)] for i in range(4)]
    tables[2] = list(range(20, 36))
    ops = kind(CPU, "float32", kv_dtype, 16)
    rotation = Rotation(torch.rand(dim // 2, dtype=torch.float64), 1.0, "adjacent")
    kv = ops.make_kv(1, 41, kv_heads, dim)
    layer = kv.layers[0]
    layer.write(torch.arange(41 * 16), torch.randn(2 * kv_heads, 41 * 16, dim))
    planes = [plane for plane in (layer.values, layer.scales) if plane is not None]
    before = [plane.clone() for plane in planes]
    norm = ops.make_norm(torch.rand(q_heads + kv_heads, dim), 1e-6)
    qkv = torch.randn(sum(lens), (q_heads + 2 * kv_heads) * dim)

    def attend(rows: list[int], lens: list[int], ends: list[int], tables: list[list[int]]) -> torch.Tensor:
        places = [range(end - count, end) for count, end in zip(lens, ends, strict=True)]
        slots = [t[p // 16] * 16 + p % 16 for t, place in zip(tables, places, strict=True) for p in place]
        positions = torch.tensor([p for place in places for p in place])
        layout = PassLayout(lens, ends, tables, len(lens), positions, torch.tensor(slots))
        prepared = ops.prepare([layout], [kv], [rotation])
        return ops.attend(qkv[rows].clone(), prepared, 0, LayerAttention(0, 0.1, qk_norm=norm))

    together, written = attend(list(range(12)), lens, ends, tables), [plane.clone() for plane in planes]
    for plane, earlier in zip(planes, before, strict=True):
        plane.copy_(earlier)
    first = 0
    for count, end, table in zip(lens, ends, tables, strict=True):
        for number in range(count):
            row = attend([first + number], [1], [end - count + number + 1], [table])[0]
            if kind is CPUOperations:
                assert torch.equal(row, together[first + number])
            assert relative(together[first + number], row) < (1e-6 if kv_dtype == "float32" else 1e-3)
        first += count
    for plane, then in zip(planes, written, strict=True):
        assert relative(then, plane) < 1e-6


KINDS = {
    "window": {"window": 40},
    "narrow": {"window": 5},
    "softcap": {"softcap": 3.0},
    "sinks": {"sinks": True},
    "temperature": {"temperature": 0.4, "temperature_length": 16},
    "norm": {"norm": "before"},
    "rotated norm": {"norm": "after", "norm_rotated": True},
    "all": {"window": 24, "softcap": 2.0, "sinks": True, "temperature": 0.3, "norm": "after",
            "norm_rotated": True, "temperature_length": 8},
}  # fmt: skip


@pytest.mark.parametrize(("dim", "heads"), [(64, (2, 6)), (256, (1, 4)), (512, (2, 2))])
@pytest.mark.parametrize("kind", KINDS)
def test_attention_of_every_kind_equals_definition(kind: str, dim: int, heads: tuple[int, int]):
    """Beside drafts, a rotation with a magnitude; blocks behind a window are gone."""
    torch.manual_seed(dim)
    settings, (kv_heads, q_heads) = dict(KINDS[kind]), heads
    window, lens, contexts = settings.get("window", 0), [1, 3, 1, 2], [100, 66, 3, 2]
    tables = [[7 * i + j + 1 for j in range(-(-context // 16))] for i, context in enumerate(contexts)]
    places = [range(end - count, end) for count, end in zip(lens, contexts, strict=True)]
    pages = torch.full((2 * kv_heads, 30 * 16, dim), float("nan"))
    for table, place in zip(tables, places, strict=True):
        for position in range(place[0]):
            pages[:, table[position // 16] * 16 + position % 16] = torch.randn(2 * kv_heads, dim)
        gone = max(0, place[0] + 1 - window) // 16 if window else 0
        for number in table[:gone]:
            pages[:, number * 16 : number * 16 + 16] = float("nan")
        table[:gone] = [0] * gone
    slots = [t[p // 16] * 16 + p % 16 for t, place in zip(tables, places, strict=True) for p in place]
    positions = torch.tensor([p for place in places for p in place])
    layout = PassLayout(lens, contexts, tables, 4, positions, torch.tensor(slots))
    rotations = [Rotation(torch.rand(dim // 2 - 3, dtype=torch.float64), 1.3, "adjacent")]
    qkv, norm = torch.randn(7, (q_heads + 2 * kv_heads) * dim), settings.pop("norm", None)
    sinks = torch.tensor([3.0, -2.0] * q_heads)[:q_heads] if settings.pop("sinks", False) else None
    weight, results = torch.rand(q_heads + kv_heads, dim) + 0.5, []
    for made in (CPUOperations, TorchOperations):
        ops = made(CPU, "float32", "float32", 16)
        kv = ops.make_kv(1, 30, kv_heads, dim)
        kv.layers[0].values.copy_(pages)
        if made is TorchOperations:
            kv.layers[0].values[:, :16] = 0
        attention = LayerAttention(
            0, dim**-0.5, sinks=sinks, qk_norm=ops.make_norm(weight, 1e-6) if norm else None, **settings
        )
        results.append(ops.attend(qkv.clone(), ops.prepare([layout], [kv], rotations), 0, attention))
        results.append(kv.layers[0].values[:, torch.tensor(slots)])
    assert relative(results[0], results[2]) < 3e-6
    assert relative(results[1], results[3]) < 1e-6


def test_a_machine_without_a_compiler_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "kernels.cpu.compiler", None)
    for name in [name for name in sys.modules if name.startswith("kernels.cpu.") and "compiler" not in name]:
        monkeypatch.delitem(sys.modules, name)
    ops = operations_for("cpu", "float32", "float32")
    assert type(ops).__name__ == "TorchOperations" and ops.name == "torch float32"
    assert "cannot be compiled here" in ops.fallbacks[0]
