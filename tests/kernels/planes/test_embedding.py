"""Gathered embedding rows equal the reference's weights."""

import pytest
import torch

from kernels.planes.embedding import embed_rows
from kernels.planes.layout import LAYOUTS
from kernels.quant.formats import FORMATS, GGMLType
from tests.kernels.planes.twins import embed_rows_torch
from tests.kernels.quant_cases import quantized, relative_error


@pytest.mark.parametrize("type", LAYOUTS, ids=lambda type: type.name)
def test_rows_of_every_type(type: GGMLType, device: str) -> None:
    shape = (130, 288 if FORMATS[type].elements == 32 else 512)
    matrix, weights = quantized(type, shape, device)
    ids = torch.tensor([0, 129, 64, 5, 5], device=device)
    expected = weights[ids]
    for index in (ids, ids.to(torch.int32)):
        rows = embed_rows(index, matrix)
        assert rows.dtype == torch.float32
        assert relative_error(rows, expected) < 1e-6
        assert relative_error(rows, embed_rows_torch(index, matrix)) < 1e-6


def test_dense_rows_and_no_ids(device: str) -> None:
    dense = torch.randn(10, 48, device=device).bfloat16()
    ids = torch.tensor([3, 9], device=device)
    assert torch.equal(embed_rows(ids, dense), dense[ids].float())
    matrix, _ = quantized(GGMLType.Q4_K, (64, 256), device)
    assert embed_rows(ids[:0], matrix).shape == (0, 256)
