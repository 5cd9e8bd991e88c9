"""Memory of recorded passes: no two tensors in use share any, and what nobody uses is used again."""

import gc

import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.cpu.scratch import Scratch, Watch, aside

SIZES = st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=40)


@given(SIZES)
def test_pieces_in_use_never_overlap(sizes: list[tuple[int, bool]]):
    scratch, held = Scratch(2000), []
    with Watch(scratch) as watch:
        for number, (size, drops) in enumerate(sizes):
            made = torch.empty(size, 2)
            with aside():
                made.fill_(number)
            held.append((number, made))
            del made
            if drops:
                held.pop(len(held) // 2)
    for number, made in held:
        assert (made == number).all()
    assert not watch.computes


def test_memory_is_used_again_once_nothing_looks_at_it():
    scratch = Scratch(1 << 12)
    with Watch(scratch) as watch:
        first = torch.empty(4, 16)
        place = first.data_ptr()
        view = first.view(16, 4)[3:]
        del first
        gc.collect()
        assert torch.empty_like(view).data_ptr() != place
        del view
        assert torch.empty(64, dtype=torch.int8).data_ptr() == place
    assert watch.fits and not watch.computes


def test_what_has_no_room_is_told():
    scratch = Scratch(1 << 10)
    with Watch(scratch) as watch:
        held = [torch.empty(100) for _ in range(3)]
        assert not watch.fits
        for number, one in enumerate(held):
            with aside():
                one.fill_(number)
    assert [float(one[0]) for one in held] == [0, 1, 2]


def test_what_torch_computes_is_told_but_not_what_is_made_aside():
    scratch = Scratch(1 << 10)
    with Watch(scratch) as watch:
        with aside():
            kept = torch.ones(3).mul_(2)
        assert not watch.computes
        torch.ones(3)
    assert watch.computes
    scratch.clear()
    with Watch(scratch):
        other = torch.empty(3)
    assert other.data_ptr() != kept.data_ptr()
