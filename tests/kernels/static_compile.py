"""Compiling kernels for GPUs that are not here, and reading what the compilers made of them.

Under `compiling(target)` a launch of a jitted kernel runs nothing: the kernel is compiled for the
target exactly as that launch would compile it, argument specialisation included. Tensors may be on
the device "meta", so that real shapes need no memory. Not under Triton's interpreter, whose kernels
are no compiler's input.
"""

import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction, MockTensor

CUDA = (80, 86, 89, 90, 100, 120)
HIP = ("gfx942", "gfx1100")
TARGETS: dict[str, GPUTarget] = {f"sm_{arch}": GPUTarget("cuda", arch, 32) for arch in CUDA} | {
    arch: GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32) for arch in HIP
}
MULTIPROCESSORS = {"sm_80": 108, "sm_86": 84, "sm_89": 128, "sm_90": 132, "sm_100": 148, "sm_120": 170}
UNCOUNTED = ("sm_100",)
"""Its large products are one thread's instruction over tensor memory, in which no warp's share is seen."""
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"

_WARP_PRODUCT = 16 * 16
"""Weights of one HMMA.16816: a warp's 16 rows and 16 columns, against 8 tokens."""


@dataclass(frozen=True)
class Compiled:
    """One kernel as compiled for one target."""

    name: str
    target: str
    constants: dict[str, Any]
    warps: int
    stages: int
    shared: int
    """Bytes of shared memory."""
    seconds: float
    """Time of the compilation; almost none when Triton had it in its cache."""
    binary: Any
    """Triton's compiled kernel."""


@dataclass(frozen=True)
class Resources:
    """What one thread needs."""

    registers: int
    stack: int
    """Bytes of local memory: arrays that did not fit and spilled registers."""


@contextmanager
def compiling(target: str) -> Iterator[list[Compiled]]:
    """Collect what the launches inside are compiled to, in order, each variant once."""
    found: list[Compiled] = []
    launch = JITFunction.run

    def run(self: JITFunction, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        named = {name: _mock(value) for name, value in options.items()}
        started = time.perf_counter()
        binary = launch(self, *map(_mock, args), grid=grid, warmup=True, **named)
        if all(binary is not other.binary for other in found):
            found.append(_compiled(self, target, named, binary, time.perf_counter() - started))
        return binary

    before = driver._active
    driver.set_active(CompilingDriver(target))
    try:
        with patch.object(JITFunction, "run", run), _pretended(target):
            yield found
    finally:
        driver._active = before


def resources(kernel: Compiled) -> Resources:
    """Registers and local memory of a kernel."""
    if "amdgcn" in kernel.binary.asm:
        text = kernel.binary.asm["amdgcn"]
        return Resources(_number(r"\.vgpr_count:\s+(\d+)", text), _number(r"ScratchSize: (\d+)", text))
    text = _tool("cuobjdump", "-res-usage", kernel)
    return Resources(_number(r"REG:(\d+)", text), _number(r"STACK:(\d+)", text))


def instructions_per_weight(kernel: Compiled, tokens: int) -> float:
    """Lane instructions for one weight in the loop with the most tensor-core products, the shortest of such.

    tokens: columns of the kernel's products. Raises ValueError when no loop has products.
    """
    lines, loops = _loops(_tool("nvdisasm", "-c", kernel))
    weights = {loop: sum(_weights(line, tokens) for line in lines[slice(*loop)]) for loop in loops}
    busiest = max(loops, key=lambda loop: (weights[loop], loop[0] - loop[1]), default=None)
    if busiest is None or not weights[busiest]:
        raise ValueError(f"{kernel.name} for {kernel.target}: no loop with tensor-core products")
    return (busiest[1] - busiest[0]) * 32 / weights[busiest]


class CompilingDriver:
    """As much of a driver as compiling needs."""

    def __init__(self, target: str) -> None:
        self._target = TARGETS[target]
        # Triton keeps kernels by device, so every target is a device of its own.
        self._device = list(TARGETS).index(target)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return self._device

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def _pretended(target: str) -> Iterator[None]:
    """What host code asks torch about the GPU."""
    arch = TARGETS[target].arch
    major, minor = divmod(arch, 10) if isinstance(arch, int) else (9, 4)
    properties = SimpleNamespace(
        name=target, major=major, minor=minor, multi_processor_count=MULTIPROCESSORS.get(target, 96)
    )
    cuda, hip = ("13.0", None) if isinstance(arch, int) else (None, "6.4")
    with (
        patch.object(torch.Tensor, "is_cuda", True),
        patch.object(torch.cuda, "get_device_capability", lambda device=None: (major, minor)),
        patch.object(torch.cuda, "get_device_properties", lambda device=None: properties),
        patch.object(torch.version, "cuda", cuda),
        patch.object(torch.version, "hip", hip),
    ):
        yield


def _compiled(
    function: JITFunction, target: str, options: dict[str, Any], binary: Any, seconds: float
) -> Compiled:
    constant = {parameter.name for parameter in function.params if parameter.is_constexpr}
    metadata = binary.metadata
    return Compiled(
        name=function.__name__,
        target=target,
        constants={name: value for name, value in options.items() if name in constant},
        warps=metadata.num_warps,
        stages=metadata.num_stages,
        shared=metadata.shared,
        seconds=seconds,
        binary=binary,
    )


def _mock(value: Any) -> Any:
    return MockTensor(value.dtype) if isinstance(value, torch.Tensor) else value


def _tool(name: str, option: str, kernel: Compiled) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.binary.asm["cubin"])
        file.flush()
        done = subprocess.run([TOOLS / name, option, file.name], capture_output=True, text=True, check=True)
    return done.stdout


def _loops(listing: str) -> tuple[list[str], list[tuple[int, int]]]:
    """All instructions, and [first, end) of those between each backward branch and its label."""
    lines: list[str] = []
    labels: dict[str, int] = {}
    loops: set[tuple[int, int]] = set()
    for line in listing.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(lines)
        elif found := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            lines.append(found[1])
            branch = re.search(r"\bBRA\b.*?(\.L_x_\d+)", found[1])
            if branch and branch[1] in labels:
                loops.add((labels[branch[1]], len(lines)))
    return lines, sorted(loops)


def _weights(line: str, tokens: int) -> float:
    """Weights that one warp's share of an instruction multiplies with all `tokens`."""
    if re.search(r"\bHMMA\.16816\b", line):
        return _WARP_PRODUCT * 8 / max(8, tokens)
    if found := re.search(r"\bHGMMA\.64x(\d+)x16\b", line):
        return 16 * 16 * int(found[1]) / max(8, tokens)
    return 0


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"no {pattern!r} in the compiler's report: {text[-300:]!r}")
    return int(found[1])
