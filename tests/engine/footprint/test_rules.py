"""What the rules say a file takes is what loading it takes, on every kind of device."""

from dataclasses import replace

import pytest
import torch

from app.models.builtin import builtin_model_path
from engine.footprint import rules as module
from engine.footprint.rules import DeviceRules, Holding, block_bytes, kept_windows, kv_bytes, weight_bytes
from engine.footprint.shape import Footprint, KVLayers, Linear, Matrix, read_footprint
from engine.gguf.file import open_gguf
from engine.model.config import read_config
from engine.model.families import FAMILIES as ARCHITECTURES
from engine.model.tensors import check_tensors
from engine.model.weights import load_weights
from engine.runner.model_kv import pool_bytes, window_sizes
from kernels.cpu.compiler import LANES
from kernels.cpu.expert_rows import ROW_TYPES
from kernels.cpu.operations import CPUOperations
from kernels.cpu.packed.form import FORMS, packed_bytes
from kernels.kv.pages import block_nbytes
from kernels.linear.linear import KEPT
from kernels.planes import layout
from kernels.quant.formats import GGMLType
from kernels.reference import operations
from kernels.reference.operations import TorchOperations
from kernels.triton_operations import KV_CHOICES, TritonOperations
from tests.support.family_goldens import all_families
from tests.support.tiny_gguf import make_tiny

CPU = torch.device("cpu")
TOLERANCE = 0.05
REFUSED = {"gemma4-e"}
FAMILIES = [
    golden for golden in all_families() if golden.architecture in ARCHITECTURES and golden.name not in REFUSED
]
QUANTS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K")
QUANTS += (
    "Q6_K",
    "Q4_K_M",
    "Q5_K_M",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
    "NVFP4",
    "IQ1_S",
    "IQ2_XS",
    "IQ3_S",
    "TQ1_0",
)
PACKED_APART = ("F32", "BF16", "Q4_1", "Q8_0", "Q2_K", "Q4_K_M", "Q6_K", "IQ4_XS", "MXFP4", "NVFP4", "IQ2_XS")
"""One of each kind of packed tiles, and types that are widened: their kernels are compiled to be measured."""
DEVICES = {
    "cpu": (CPUOperations(CPU, "float32", "float32", 32), Holding.PACKED, 4),
    "cpu, narrow": (CPUOperations(CPU, "bfloat16", "bfloat16", 32), Holding.PACKED, 2),
    "torch": (TorchOperations(CPU, "float32", "float16", 32), Holding.DENSE, 4),
    "gpu": (TritonOperations(CPU, "auto"), Holding.PLANES, 2),
}


def rules_of(name):
    ops, holding, itemsize = DEVICES[name]
    return ops, DeviceRules("cpu", name, holding, itemsize, ops.kv_format, ops.block_size)


def check(path, name):
    """The handles of a load hold what the rules say, and a block of KV is as large."""
    ops, rules = rules_of(name)
    with open_gguf(path) as file:
        config = read_config(file)
        footprint = read_footprint(file, config, check_tensors(file, config))
        held = load_weights(file, config, ops, lambda _part, _what: None).nbytes
    said = weight_bytes(footprint, rules)
    assert said == pytest.approx(held, rel=TOLERANCE), (said, held)
    assert kv_bytes(footprint, rules, 1) == sum(pool_bytes(ops, config))
    assert sorted(kept_windows(footprint)) == window_sizes(config)


@pytest.mark.parametrize("device", DEVICES)
def test_of_the_built_in_model(device):
    check(builtin_model_path(), device)


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("golden", FAMILIES, ids=lambda golden: golden.name)
def test_of_every_family(golden, device, tmp_path):
    check(golden.write_model(tmp_path), device)


@pytest.mark.parametrize(
    ("quant", "device"), [(quant, "gpu") for quant in QUANTS] + [(quant, "cpu") for quant in PACKED_APART]
)
def test_of_every_quantisation(quant, device, tmp_path):
    check(make_tiny(tmp_path / "a.gguf", "llama", quant=quant, tied=quant in ("Q8_0", "Q4_K_M")), device)


def test_the_tables_are_the_kernels():
    assert layout.LAYOUTS.keys() == module.PLANE_BYTES.keys()
    for kind in layout.LAYOUTS:
        matrix = layout.empty_planes(kind, (1, 1), CPU)
        assert matrix.nbytes == module.TILE_ROWS * module.PLANE_BYTES[kind]
    assert (layout.ROWS, layout.COLUMNS) == (module.TILE_ROWS, module.TILE_COLUMNS)
    assert {kind: dtype.itemsize for kind, dtype in KEPT.items()} == module.KEPT_BYTES
    assert {kind: packed_bytes(kind, (1, 256)) for kind in FORMS} == {
        kind: module.PACKED_ROWS * nbytes for kind, nbytes in module.PACKED_BYTES.items()
    }
    assert (LANES, operations.DENSE_EMBEDDING_BYTES) == (module.PACKED_ROWS, module.DENSE_EMBEDDING_BYTES)
    assert (ROW_TYPES, LANES) == (module.EXPERT_TYPES, module.KERNEL_COLUMNS)


@pytest.mark.parametrize("head_dim", [96, 100])
@pytest.mark.parametrize("kv_format", sorted({one for choices in KV_CHOICES.values() for one in choices}))
def test_kv_of_a_gpu(kv_format, head_dim):
    rules = DeviceRules("cuda:0", "", Holding.PLANES, 2, kv_format, 64)
    assert block_bytes(KVLayers(3, 0, 2, head_dim), rules) == block_nbytes(3, 2, head_dim, 64, kv_format)


@pytest.mark.parametrize("head_dim", [96, 100])
@pytest.mark.parametrize("kv_format", module.KV_BYTES)
def test_kv_of_a_cpu(kv_format, head_dim):
    rules = DeviceRules("cpu", "", Holding.PACKED, 4, kv_format, 32)
    ops = CPUOperations(CPU, "float32", kv_format, 32)
    held = ops.make_kv(3, 5, 2, head_dim)
    pieces = sum(piece.nbytes for piece in ops.block_pieces(held, 2))
    wanted = block_bytes(KVLayers(3, 0, 2, head_dim), rules)
    assert ops.kv_block_bytes(3, 2, head_dim) == pieces == wanted


def test_layers_of_a_window_keep_no_more_than_it():
    rules = DeviceRules("cpu", "", Holding.DENSE, 4, "float16", 32)
    linear = Linear((Matrix(GGMLType.F32, 8),), 8)
    kv = (KVLayers(1, 0, 1, 16), KVLayers(3, 100, 1, 16))
    footprint = Footprint((), (), linear, False, 0, kv, 4096)
    block = 2 * 16 * 32 * 2
    assert kv_bytes(footprint, rules, 1) == 4 * block
    assert kv_bytes(footprint, rules, 64) == 8 * block
    assert kv_bytes(footprint, rules, 3200) == (100 + 3 * 5) * block
    shorter, alone = replace(footprint, context_length=100), replace(footprint, kv=kv[1:])
    assert kv_bytes(shorter, rules, 3200) == 400 * block
    assert kv_bytes(alone, rules, 3200) == 300 * block


def test_a_large_embedding_stays_as_in_the_file_where_torch_computes():
    rules = DeviceRules("cpu", "", Holding.DENSE, 4, "float32", 32)
    for rows, expected in ((1 << 14, 4 << 24), (1 << 15, (1 << 25) * 34 // 32)):
        embedding = Linear((Matrix(GGMLType.Q8_0, rows),), 1 << 10)
        assert weight_bytes(Footprint((), (), embedding, False, 0, (), 1), rules) == expected
