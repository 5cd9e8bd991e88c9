"""What crosses over between a GPU and the processor arrives whole, whatever crosses behind it."""

import pytest
import torch

from engine.device.stream import open_stream
from kernels.cuda import crossing
from kernels.cuda.crossing import Crossing, Cut, FixedCrossing


def test_parts_arrive_with_their_shapes_and_types(device):
    one = torch.randn(3, 50, device=device).to(torch.float16)
    other = torch.randn(7, 33, device=device)
    crossed = Crossing(torch.device(device))
    for _ in range(3):
        here, there = crossed.to_host(one, other)
        assert here.device.type == there.device.type == "cpu"
        assert torch.equal(here, one.cpu()) and torch.equal(there, other.cpu())
        back = crossed.to_device(there)
        assert back.device.type == device and torch.equal(back, other)


def test_a_buffer_that_is_used_again_waits_for_its_copy(device):
    crossed = Crossing(torch.device(device))
    sent = [torch.full((1 << 10, 1 << 8), float(number)) for number in range(20)]
    made = [crossed.to_device(part) for part in sent]
    for part, arrived in zip(sent, made, strict=True):
        assert torch.equal(arrived.cpu(), part)


@pytest.mark.parametrize("sizes", [(1,), (5, 64), (63, 1, 130)])
def test_views_of_one_buffer_do_not_overlap(sizes):
    parts = [torch.full((size,), float(number), dtype=torch.float16) for number, size in enumerate(sizes)]
    buffer = torch.zeros(sum(map(crossing._room, parts)), dtype=torch.uint8)
    views = crossing._views(buffer, parts)
    for view, part in zip(views, parts, strict=True):
        view.copy_(part)
    assert all(torch.equal(view, part) for view, part in zip(views, parts, strict=True))


def test_a_captured_pass_asks_the_host_between_its_parts(device):
    place = torch.device(device)
    stream, crossed = open_stream(place), FixedCrossing(place)
    source, result = torch.zeros(8, device=place), torch.zeros(8, device=place)
    asked = 0

    def work(cut: Cut) -> None:
        value = source + 1
        for factor in (10, 3):
            here, answer = crossed.down("value", value), crossed.buffer("answer", value.shape, value.dtype)

            def between(here=here, answer=answer, factor=factor) -> None:
                nonlocal asked
                asked += 1
                crossed.arrived()
                torch.mul(here, factor, out=answer)

            cut(between)
            value = crossed.up(answer) + 1
        result.copy_(value)

    with torch.inference_mode(), stream.current():
        work(lambda _between: None)
        assert not asked
        replay = stream.capture_parts(work)
        for number in (0.0, 4.0):
            source.fill_(number)
            replay()
            stream.synchronize()
            assert result.tolist() == [((number + 1) * 10 + 1) * 3 + 1] * 8
    assert asked == 4
