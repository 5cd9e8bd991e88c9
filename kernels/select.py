"""Which implementation of the operations serves a device.

Implementations are imported where they are chosen: a CPU machine need not have Triton.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from kernels.contract import Operations
from kernels.cpu.team import passing_team
from kernels.quant.formats import KVFormat

if TYPE_CHECKING:
    from kernels.streaming.handles import HandleStream

MIN_CAPABILITY = 8
"""Compute capability (major) with the matrix instructions and asynchronous copies that kernels use."""

CPU_BLOCK_SIZE = 32
"""Tokens of a KV block where torch computes: a partly filled block costs memory, a long gather time."""


def operations_for(
    device: str, weight_dtype: str = "auto", kv_dtype: str = "auto", batch_independent: bool = False
) -> Operations:
    """The implementation that serves a device.

    device: "cpu", "cuda", … ; weight_dtype: "auto", "float32" or "bfloat16" (auto is probed on a CPU
    and keeps a file's own types on a GPU; the others compute in torch everywhere); kv_dtype: "auto",
    "float32", "float16", "bfloat16" or "q8_0"; batch_independent: results that no other row changes
    (batch-invariant kernels, which only a GPU has). Raises ValueError naming a bad option.
    """
    from kernels.reference.operations import TorchOperations

    place = torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else torch.device(device)
    missing = ""
    if place.type == "cuda" and weight_dtype == "auto":
        try:
            _check_gpu(place)
            from kernels.pieces.operations import PieceOperations

            return PieceOperations(place, kv_dtype, batch_independent)
        except ImportError as error:
            missing = f"every operation runs in torch: Triton cannot be used here ({error})"
    if batch_independent:
        raise ValueError(
            "batch_independent: only a GPU's own kernels have it, with weight_dtype auto"
            f"{'; ' + missing if missing else ''}"
        )
    if place.type == "cpu":
        return _on_cpu(place, weight_dtype, kv_dtype, CPU_BLOCK_SIZE)
    ops = TorchOperations(place, weight_dtype, kv_dtype, CPU_BLOCK_SIZE)
    if missing:
        ops.fallbacks.append(missing)
    return ops


def host_operations(kv_format: KVFormat, block_size: int) -> Operations:
    """What the processor computes with beside a GPU, whose KV is of that type, in blocks of that size."""
    return _on_cpu(torch.device("cpu"), "auto", kv_format, block_size)


def open_weight_stream(ops: Operations, host_ops: Operations) -> "HandleStream | None":
    """What brings weights of the processor's to a GPU; None where these operations cannot.

    To be opened before the processor's weights are made: they lie in its memory.
    """
    from kernels.reference.operations import TorchOperations

    if isinstance(ops, TorchOperations) or type(host_ops) is TorchOperations:
        return None
    from kernels.cpu.operations import CPUOperations
    from kernels.streaming.handles import HandleStream
    from kernels.triton_operations import TritonOperations

    assert isinstance(host_ops, CPUOperations) and isinstance(ops, TritonOperations)

    stream = HandleStream(ops.device, ops.batch_invariant)
    host_ops.memory = stream.memory.take
    return stream


def captures_parts(ops: Operations) -> bool:
    """Whether parts of a pass can be captured: then these operations take a pass's tables on the device."""
    from kernels.reference.operations import TorchOperations

    return ops.runs_ahead and not isinstance(ops, TorchOperations)


@passing_team()
def host_holding() -> tuple[bool, int]:
    """Whether these operations have weights packed, and the bytes of a weight that is widened."""
    from kernels.reference.weight_probe import FEW_AND_MANY_ROWS, MANY_ROWS, fastest_weight_dtype

    packs = find_spec("llvmlite") is not None
    rows = MANY_ROWS if packs else FEW_AND_MANY_ROWS
    return packs, fastest_weight_dtype(torch.device("cpu"), rows).itemsize


@passing_team()
def _on_cpu(place: torch.device, weight_dtype: str, kv_dtype: str, block_size: int) -> Operations:
    try:
        from kernels.cpu.operations import CPUOperations

        return CPUOperations(place, weight_dtype, kv_dtype, block_size)
    except (ImportError, OSError) as error:
        from kernels.reference.operations import TorchOperations

        ops = TorchOperations(place, weight_dtype, kv_dtype, block_size)
        ops.fallbacks.append(f"passes of few rows run in torch: kernels cannot be compiled here ({error})")
        return ops


def usable_gpus() -> tuple[int, ...]:
    """Numbers of the GPUs that kernels were made for, of all where there is none of these."""
    numbers = range(torch.cuda.device_count())
    return tuple(filter(_is_served, numbers)) or tuple(numbers)


def _is_served(number: int) -> bool:
    return torch.version.cuda is not None and torch.cuda.get_device_capability(number)[0] >= MIN_CAPABILITY


def _check_gpu(device: torch.device) -> None:
    """Raise ImportError, saying why, for a GPU that the kernels were not made for."""
    if torch.version.cuda is None:
        raise ImportError("the kernels need an NVIDIA GPU")
    major, minor = torch.cuda.get_device_capability(device)
    if major < MIN_CAPABILITY:
        raise ImportError(f"the GPU has compute capability {major}.{minor}, at least 8.0 is needed")
    from kernels.cuda.launchers import check_launchers

    check_launchers()
