"""Residual norms on CPUs, and the length of a vector for all norms."""

import torch
from llvmlite import ir
from torch import Tensor

from kernels.cpu.compiler import F32, I64, LANES, VECTOR, Emitter, Value, compiled
from kernels.cpu.team import threads_for

_ROWS_PER_THREAD = 16


def add_norm(
    residual: Tensor, delta: Tensor | None, weight: Tensor, eps_length: Tensor, chosen: Tensor | None = None
) -> Tensor:
    """residual float32 [T, dim] += delta, in place; returns its RMS norm (weight holds sqrt(dim)).

    chosen: integers [R], the rows that both is done with, if not all; then the norm is [R, dim].
    """
    (total, dim), places = residual.shape, None if chosen is None else chosen.to(torch.int64)
    rows = total if places is None else places.shape[0]
    out = torch.empty(rows, dim)
    _norm_kernel(delta is not None, places is not None)(
        threads_for(rows // _ROWS_PER_THREAD), rows, 1, dim, residual.data_ptr(),
        0 if delta is None else delta.data_ptr(), weight.data_ptr(), eps_length.data_ptr(), out.data_ptr(),
        0 if places is None else places.data_ptr(),
    )  # fmt: skip
    return out


@compiled
def _norm_kernel(added: bool, chosen: bool) -> ir.Module:
    """One thread takes rows."""
    e = Emitter(f"add_norm_{int(added)}{int(chosen)}")
    rows, chunk, dim = (e.parameter(index) for index in range(1, 4))
    residual, delta, weight, eps_length, out, places = (e.pointer(index) for index in range(4, 10))
    with e.pieces(rows, chunk) as row:
        start = e.ir.mul(e.load(e.address(places, row, I64), I64) if chosen else row, dim)
        line, normed = e.address(residual, start), e.address(out, e.ir.mul(row, dim))
        squares = e.variable(e.vector(0.0))
        with e.loop(e.const(0), dim, LANES) as column:
            value = e.load(e.address(line, column))
            if added:
                value = e.ir.fadd(value, e.load(e.address(e.address(delta, start), column)))
                e.store(value, e.address(line, column))
            e.ir.store(e.fma(value, value, e.ir.load(squares, typ=VECTOR)), squares)
        factor = inverse_length(e, e.ir.load(squares, typ=VECTOR), eps_length)
        with e.loop(e.const(0), dim, LANES) as column:
            value = e.ir.fmul(e.load(e.address(line, column)), factor)
            value = e.ir.fmul(value, e.load(e.address(weight, column)))
            e.store(value, e.address(normed, column))
    return e.finish()


def inverse_length(e: Emitter, squares: Value, eps_length: Value) -> Value:
    """1 / sqrt(sum of squares + eps_length²) in every lane."""
    length = e.splat(e.load(eps_length, F32))
    total = e.fma(length, length, e.splat(e.sum(squares)))
    return e.ir.fdiv(e.vector(1.0), e.call("llvm.sqrt", total))
