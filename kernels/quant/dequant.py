"""Unpacking quantised tensors to float32, bit for bit as gguf's reference does.

Written in torch: it runs on any device, many blocks at a time.
"""

from collections.abc import Callable
from math import prod

import numpy as np
import torch
from torch import Tensor

from kernels.quant import coded, kquants, legacy, nonlinear
from kernels.quant.formats import DEQUANTIZABLE, FORMATS, GGMLType

SUPPORTED: frozenset[GGMLType] = DEQUANTIZABLE
"""The types that `dequantize` accepts."""

# Elements unpacked at once: on a CPU the intermediate bytes stay in its cache, on a GPU few launches
# do the work. The temporary memory is a few times this many bytes.
_CPU_SLAB = 1 << 20
_DEVICE_SLAB = 1 << 23

_PLAIN = {
    GGMLType.F16: torch.float16,
    GGMLType.BF16: torch.bfloat16,
    GGMLType.F32: torch.float32,
    GGMLType.F64: torch.float64,
    GGMLType.I8: torch.int8,
    GGMLType.I16: torch.int16,
    GGMLType.I32: torch.int32,
    GGMLType.I64: torch.int64,
}

# unpack(blocks, out): uint8 [n, block bytes] into float32 [n, block elements], contiguous.
_UNPACK: dict[GGMLType, Callable[[Tensor, Tensor], None]] = {
    GGMLType.Q4_0: legacy.unpack_q4_0,
    GGMLType.Q4_1: legacy.unpack_q4_1,
    GGMLType.Q5_0: legacy.unpack_q5_0,
    GGMLType.Q5_1: legacy.unpack_q5_1,
    GGMLType.Q8_0: legacy.unpack_q8_0,
    GGMLType.Q2_K: kquants.unpack_q2_k,
    GGMLType.Q3_K: kquants.unpack_q3_k,
    GGMLType.Q4_K: kquants.unpack_q4_k,
    GGMLType.Q5_K: kquants.unpack_q5_k,
    GGMLType.Q6_K: kquants.unpack_q6_k,
    GGMLType.IQ4_NL: nonlinear.unpack_iq4_nl,
    GGMLType.IQ4_XS: nonlinear.unpack_iq4_xs,
    GGMLType.MXFP4: nonlinear.unpack_mxfp4,
    GGMLType.NVFP4: nonlinear.unpack_nvfp4,
    **{type: coded.unpacker(type) for type in coded.CODED},
}


def dequantize(raw: Tensor, type: GGMLType, shape: tuple[int, ...]) -> Tensor:
    """The values of a tensor: float32 of `shape`, on the device of `raw`.

    `raw` is uint8 [nbytes], the tensor's bytes as they lie in the file. Raises ValueError when the
    type is not in SUPPORTED or the number of bytes does not belong to the shape.
    """
    if type not in SUPPORTED:
        raise ValueError(
            f"{type.name} cannot be dequantised; supported are {sorted(t.name for t in SUPPORTED)}"
        )
    block = FORMATS[type]
    count, rest = divmod(prod(shape), block.elements)
    if rest or raw.dtype != torch.uint8 or raw.shape != (count * block.nbytes,):
        raise ValueError(
            f"{type.name} of shape {shape} takes {count * block.nbytes} bytes of uint8, "
            f"not {raw.dtype} {tuple(raw.shape)}"
        )
    if type in _PLAIN:
        return _reinterpret(raw, _PLAIN[type]).to(torch.float32, copy=True).view(shape)
    out = torch.empty((count, block.elements), dtype=torch.float32, device=raw.device)
    blocks = raw.view(count, block.nbytes)
    unpack = _UNPACK[type]
    slab = max(1, (_CPU_SLAB if raw.device.type == "cpu" else _DEVICE_SLAB) // block.elements)
    for start in range(0, count, slab):
        unpack(blocks[start : start + slab], out[start : start + slab])
    return out.view(shape)


def as_tensor(array: np.ndarray) -> Tensor:
    """A CPU tensor over the same memory as a numpy array, without copying.

    Also for read-only arrays, such as a mapped file's: torch cannot mark a tensor read-only, and
    writing to the result of one ends the process.
    """
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Writeable(array)))


class _Writeable:
    """Presents a read-only array as writeable, so that torch takes it without a warning."""

    def __init__(self, array: np.ndarray) -> None:
        self._keep = array
        interface = dict(array.__array_interface__)
        interface["data"] = (array.__array_interface__["data"][0], False)
        self.__array_interface__ = interface


def _reinterpret(raw: Tensor, dtype: torch.dtype) -> Tensor:
    if raw.storage_offset() % dtype.itemsize or raw.data_ptr() % dtype.itemsize:
        raw = raw.clone()
    return raw.view(dtype)
