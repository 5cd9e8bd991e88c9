"""Weights are in their places when a pass uses them, whatever passes brought nothing before."""

import pytest
import torch

pytest.importorskip("llvmlite")

from kernels.contract import QuantizedMatrix
from kernels.cpu.operations import CPUOperations
from kernels.quant.formats import GGMLType
from kernels.streaming.handles import HandleStream
from tests.kernels.quant_cases import plausible_bytes

SHAPE = (64, 256)


def test_what_was_not_brought_is_not_taken_for_there(device: str) -> None:
    host = CPUOperations(torch.device("cpu"), "bfloat16", "float16", 64)
    stream = HandleStream(torch.device(device), batch_invariant=False)
    host.memory = stream.memory.take
    matrices = [
        QuantizedMatrix(plausible_bytes(GGMLType.Q8_0, SHAPE, "cpu"), GGMLType.Q8_0, SHAPE) for _ in range(2)
    ]
    with host.loading():
        linears = [host.make_linear([matrix], None) for matrix in matrices]
    assert all(stream.offer("linear", linear) for linear in linears)
    stream.open()
    streamed = [stream.make("linear", linear) for linear in linears]

    def used() -> list[torch.Tensor]:
        found = []
        stream.begin()
        for one in streamed:
            with stream.using(one) as handle:
                found.append(handle.segments[0].weight.quants.clone())
        return found

    try:
        expected = used()
        assert not torch.equal(*expected)
        with stream.bringing_nothing():
            for memory in stream._memory.values():
                memory.zero_()
            used()
        for first, second in zip(used(), expected, strict=True):
            assert torch.equal(first, second)
    finally:
        stream.close()
