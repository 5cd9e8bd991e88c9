"""Which errors let torch stand in for a kernel, and how they are told."""

import re

import pytest
import torch
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from kernels.cuda.errors import is_kernels, reason_of
from kernels.pieces.table import ANSWERS, EXPERTS, PROMPTS, Pieces

REFUSED = "Triton Error [CUDA]: no kernel image is available for execution on the device"
LOST = "Triton Error [CUDA]: an illegal memory access was encountered"


def error_of_the_compiler() -> Exception:
    """One without a type of its own, raised inside Triton."""
    frame = {"__name__": "triton.backends.nvidia.compiler"}
    exec("def make(): raise RuntimeError('PassManager::run failed')", frame)
    try:
        frame["make"]()
    except RuntimeError as error:
        return error
    raise AssertionError


KERNELS = [
    OutOfResources(120_000, 101_376, "shared memory"),
    CompilationError("src", None, "bad"),
    PTXASError("bad"),
    RuntimeError(REFUSED),
    error_of_the_compiler(),
]
OTHERS = [
    RuntimeError("boom"),
    RuntimeError(LOST),
    MemoryError("full"),
    torch.OutOfMemoryError("CUDA"),
    KeyError(1),
]


@pytest.mark.parametrize("error", KERNELS, ids=lambda error: type(error).__name__)
def test_errors_of_kernels(error):
    assert is_kernels(error)
    assert "\n" not in reason_of(error) and "Error" not in reason_of(error)


@pytest.mark.parametrize("error", OTHERS, ids=str)
def test_errors_that_say_nothing_of_a_kernel(error):
    assert not is_kernels(error)


def test_pieces_are_told_by_their_reasons_with_what_they_take():
    pieces = Pieces(torch.device("cpu"))
    assert not pieces and pieces.sentences == ()
    pieces.add(ANSWERS, "long heads")
    pieces.add(PROMPTS, "long heads")
    for operation in ("norms", "products with Q4_K|few", "products with Q4_K|many"):
        pieces.add_failed(operation, KERNELS[0])
    for tokens in (1, 64):
        with pieces.measuring(tokens):
            assert pieces.run("norms", lambda: 7) == 7
    assert pieces.sentences[0] == f"torch computes {ANSWERS} and {PROMPTS}: long heads"
    assert re.fullmatch(
        r"torch computes norms and products with Q4_K \(\S+ ms a token written, \S+ ms a token read\): "
        "its kernel needs 120000 of shared memory, this device has 101376",
        pieces.sentences[1],
    )


@pytest.mark.parametrize(
    ("operation", "rows", "prompts"),
    [(ANSWERS, False, False), (PROMPTS, True, False), (EXPERTS, False, False)],
)
def test_what_waits_for_the_device_is_not_captured(operation, rows, prompts):
    pieces = Pieces(torch.device("cpu"))
    pieces.add("norms", "none")
    assert pieces.captured(prompts=True) and pieces.captured(prompts=False)
    pieces.add(operation, "none")
    assert (pieces.captured(prompts=False), pieces.captured(prompts=True)) == (rows, prompts)
