"""Weights out of planes in plain torch."""

import torch
from torch import Tensor

from kernels.planes.layout import PlanesMatrix


def dequantize_planes_torch(w: PlanesMatrix, out: Tensor, first_row: int = 0) -> None:
    """Plain torch twin of `dequantize_planes`, with weights rounded once."""
    out.copy_(weights_by_definition(w)[first_row : first_row + out.shape[0]])


def embed_rows_torch(ids: Tensor, w: PlanesMatrix) -> Tensor:
    """Plain torch twin of `embed_rows`; unpacks the whole matrix."""
    return weights_by_definition(w)[ids.long()].float()


def weights_by_definition(matrix: PlanesMatrix) -> torch.Tensor:
    """float64 [N, K], from the definition in the docstring of `kernels.planes.layout`."""
    form = matrix.format
    tiles, blocks = matrix.quants.shape[:2]
    words = matrix.quants.to(torch.int32).unsqueeze(3)
    shifts = torch.arange(0, 16, form.bits, device=words.device).view(-1, 1, 1)
    quants = ((words >> shifts) & ((1 << form.bits) - 1)).flatten(2, 3)
    if form.high_bits:
        places = torch.tensor(form.high_places, device=words.device).view(-1, 1, 1)
        high = (matrix.high.to(torch.int32) >> places) & ((1 << form.high_bits) - 1)
        quants = quants | (high << form.bits)
    quants = quants.permute(0, 3, 1, 2, 4)  # tiles, rows, super-blocks, planes, columns
    table = form.table or range(256)
    values = torch.tensor(table, dtype=torch.float64, device=words.device)[quants.long()]
    values = values * form.unit - form.offset
    meta = matrix.meta.permute(0, 3, 1, 2).contiguous()
    scale, minimum = scales_by_definition(meta, matrix)
    values = values.reshape(tiles, 64, blocks, scale.shape[-1], -1)
    weights = values * scale.unsqueeze(-1) - minimum.unsqueeze(-1)
    return weights.reshape(tiles * 64, -1)[: matrix.shape[0], : matrix.shape[1]]


def scales_by_definition(meta: torch.Tensor, matrix: PlanesMatrix) -> tuple[torch.Tensor, torch.Tensor]:
    form = matrix.format
    if form.scales in ("half", "pair"):
        halves = meta.view(torch.float16).double()
        if form.scales == "half":
            return halves, torch.zeros_like(halves)
        return halves[..., ::2], -halves[..., 1::2]
    if form.scales == "one":
        scale = meta.view(torch.float16).double()[..., :1]
        return scale, torch.zeros_like(scale)
    if form.scales == "e4m3":
        scale = meta.view(torch.float8_e4m3fn).double() / 2
        # The bits of the largest are no number to torch.
        scale = torch.where(meta.view(torch.uint8) == 0x7F, 240.0, scale)
        return scale, torch.zeros_like(scale)
    if form.scales == "e8m0":
        scale = torch.exp2(meta.view(torch.uint8).double() - 128)
        return scale, torch.zeros_like(scale)
    factors = meta[..., -1:].contiguous().view(torch.float16).double()
    parts = meta[..., :-1].contiguous()
    if not form.minima:
        scale = parts.view(torch.int8).double() * factors[..., :1]
        return scale, torch.zeros_like(scale)
    pairs = parts.view(torch.uint8)
    scale, minimum = (pairs & 15, pairs >> 4) if form.scale_width == 16 else pairs.split(8, dim=-1)
    return scale.double() * factors[..., :1], minimum.double() * factors[..., 1:]
