"""Weights out of planes in plain torch."""

from torch import Tensor

from kernels.planes.layout import PlanesMatrix
from kernels.quant.dequant import dequantize
from tests.kernels.planes.inverse import unpack


def dequantize_planes_torch(w: PlanesMatrix, out: Tensor, first_row: int = 0) -> None:
    """Plain torch twin of `dequantize_planes`, with weights rounded once."""
    rows = dequantize(unpack(w), w.type, w.shape)
    out.copy_(rows[first_row : first_row + out.shape[0]])


def embed_rows_torch(ids: Tensor, w: PlanesMatrix) -> Tensor:
    """Plain torch twin of `embed_rows`; unpacks the whole matrix."""
    return dequantize(unpack(w), w.type, w.shape)[ids.long()]
