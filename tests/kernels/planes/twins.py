"""Weights out of planes in plain torch."""

import torch
from torch import Tensor

from kernels.pieces.planes import plane_values
from kernels.planes.layout import PlanesMatrix


def dequantize_planes_torch(w: PlanesMatrix, out: Tensor, first_row: int = 0) -> None:
    """Plain torch twin of `dequantize_planes`, with weights rounded once."""
    out.copy_(weights_by_definition(w)[first_row : first_row + out.shape[0]])


def embed_rows_torch(ids: Tensor, w: PlanesMatrix) -> Tensor:
    """Plain torch twin of `embed_rows`; unpacks the whole matrix."""
    return weights_by_definition(w)[ids.long()].float()


def weights_by_definition(matrix: PlanesMatrix) -> torch.Tensor:
    """float64 [N, K], exact."""
    values = plane_values(matrix.format, matrix.quants, matrix.high, matrix.meta, torch.float64)
    return values[: matrix.shape[0], : matrix.shape[1]]
