"""Embeddings too large to be kept dense are read row by row: the same values for every type."""

import numpy as np
import pytest
import torch

import kernels.reference.operations as reference
from kernels.contract import QuantizedMatrix
from kernels.quant.dequant import as_tensor, dequantize
from kernels.quant.formats import GGMLType
from kernels.reference.operations import TorchOperations
from tests.support.tiny_blocks import random_tensor

TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K"]
TYPES += ["Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"]
ROWS, COLUMNS = 21, 256


def matrix(kind: str, offset: int = 0) -> QuantizedMatrix:
    raw = random_tensor(np.random.default_rng(4), kind, (ROWS, COLUMNS), 0.3)
    plain = np.frombuffer(np.ascontiguousarray(raw).tobytes(), np.uint8)
    shifted = np.zeros(len(plain) + offset, np.uint8)
    shifted[offset:] = plain
    return QuantizedMatrix(as_tensor(shifted[offset:]), GGMLType[kind], (ROWS, COLUMNS))


@pytest.mark.parametrize("offset", [0, 32, 1])
@pytest.mark.parametrize("kind", TYPES)
def test_rows_read_on_demand_equal_the_dense_ones(kind: str, offset: int, monkeypatch):
    ops = TorchOperations(torch.device("cpu"), "float32", "float32", 32)
    made = matrix(kind, offset)
    monkeypatch.setattr(reference, "DENSE_EMBEDDING_BYTES", 0)
    handle = ops.make_embedding(made)
    assert handle.dense is None and ops.weight_bytes(handle) == made.raw.nbytes
    ids = torch.tensor([20, 0, 3, 3, 7])
    expected = dequantize(matrix(kind).raw, made.type, made.shape)[ids]
    assert torch.equal(ops.embed(ids, handle), expected)
    assert torch.equal(ops.embed(ids[:1], handle), expected[:1])


def test_small_norms_and_embeddings_keep_no_view_of_the_file():
    ops = TorchOperations(torch.device("cpu"), "float32", "float32", 32)
    made = matrix("F32")
    handle = ops.make_embedding(made)
    before = handle.dense.clone()
    made.raw.zero_()
    assert torch.equal(handle.dense, before)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_pass_that_samples_nobody_still_runs(dtype: str):
    ops = TorchOperations(torch.device("cpu"), dtype, "float32", 32)
    linear = ops.make_linear([matrix("Q8_0")], None)
    assert ops.linear(torch.empty(0, COLUMNS), linear).shape == (0, ROWS)
