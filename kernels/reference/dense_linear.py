"""Dense linear layers for CPUs: y = x · Wᵀ with W packed once for the vendor's matmul.

Vendor GEMMs repack a plain row-major weight on every call, which costs more than the product itself
at 2 to 64 rows. Where torch exposes a prepacked GEMM (MKL's for float32, oneDNN's for bfloat16) the
weight is packed once at load and the plain copy is dropped. A pack is used only after the product
was checked against the plain one for its shape and type; otherwise the plain product serves.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

PACK_ROWS = 64
"""Row count that a pack is tuned for; packs serve any number of rows."""

_CHECK_ROWS = (1, 8)
_checked: dict[tuple[torch.dtype | int, ...], bool] = {}


@dataclass(slots=True)
class DenseLinear:
    """A weight [out_features, in_features], packed or plain, with an optional float32 bias."""

    out_features: int
    in_features: int
    dtype: torch.dtype
    product: Callable[[Tensor], Tensor]
    """x [T, in] of `dtype` → [T, out] of `dtype`, without bias."""
    bias: Tensor | None
    nbytes: int
    packed: bool


def make_dense(weight: Tensor, bias: Tensor | None) -> DenseLinear:
    """Pack a float32 or bfloat16 weight [out, in] for repeated use."""
    packed = _packed_product(weight) if weight.device.type == "cpu" else None
    if packed is not None and not _is_right(packed, weight):
        packed = None
    return DenseLinear(
        out_features=weight.shape[0],
        in_features=weight.shape[1],
        dtype=weight.dtype,
        product=packed or (lambda x: F.linear(x, weight)),
        bias=bias,
        nbytes=weight.nbytes,
        packed=packed is not None,
    )


def apply_dense(x: Tensor, dense: DenseLinear) -> Tensor:
    """[T, in] → [T, out] in the weight's dtype."""
    y = dense.product(x.to(dense.dtype))
    return y if dense.bias is None else y.add_(dense.bias)


def _packed_product(weight: Tensor) -> Callable[[Tensor], Tensor] | None:
    if weight.dtype is torch.float32 and torch.backends.mkl.is_available():
        return _mkl_product(weight)
    if weight.dtype is torch.bfloat16 and torch.backends.mkldnn.is_available():
        return _onednn_product(weight)
    return None


def _mkl_product(weight: Tensor) -> Callable[[Tensor], Tensor] | None:
    try:
        pack = torch.ops.mkl._mkl_reorder_linear_weight(weight, PACK_ROWS)
    except (AttributeError, RuntimeError):
        return None
    multiply = torch.ops.mkl._mkl_linear
    # The call wants the plain weight for its shape only, as long as the row count passed equals
    # x's: a zero-stride stand-in lets the plain copy go.
    shape_only = torch.zeros(1, dtype=weight.dtype).expand(weight.shape)

    def product(x: Tensor) -> Tensor:
        return multiply(x, pack, shape_only, None, x.shape[0])

    return product


def _onednn_product(weight: Tensor) -> Callable[[Tensor], Tensor] | None:
    try:
        pack = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_ROWS)
    except (AttributeError, RuntimeError):
        return None
    multiply = torch.ops.mkldnn._linear_pointwise

    def product(x: Tensor) -> Tensor:
        return multiply(x, pack, None, "none", [], "")

    return product


def _is_right(packed: Callable[[Tensor], Tensor], weight: Tensor) -> bool:
    """Whether packing works for weights of this shape and type, checked on the first one."""
    key = (weight.dtype, *weight.shape)
    if key not in _checked:
        _checked[key] = _agrees(packed, weight)
    return _checked[key]


def _agrees(packed: Callable[[Tensor], Tensor], weight: Tensor) -> bool:
    """Whether the packed product matches the plain one for several row counts."""
    tolerance = 1e-5 if weight.dtype is torch.float32 else 2e-2
    for rows in _CHECK_ROWS:
        angles = torch.arange(rows * weight.shape[1], dtype=torch.float32).view(rows, -1)
        x = torch.sin(angles * 0.37).to(weight.dtype)
        try:
            got = packed(x)
        except RuntimeError:
            return False
        expected = F.linear(x, weight)
        scale = expected.abs().max().clamp_min(1e-30)
        if got.shape != expected.shape or not bool((got - expected).abs().max() <= tolerance * scale):
            return False
    return True
