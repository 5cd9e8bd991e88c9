"""Tables of decode and mixed passes against plain Python, and rows that end on the device."""

import pytest
import torch

from kernels.state.decode_state import ENDED, NOT_FINITE, DecodeState, PassBuffers, advance, fill_pass
from kernels.state.sampler_state import RowParameters, SamplerState

BLOCK_SIZE = 16


def state_on(device: str, max_rows: int = 8, max_blocks: int = 48, end_ids=(7, 9)) -> DecodeState:
    return DecodeState.create(max_rows, max_blocks, BLOCK_SIZE, end_ids, depth=4, device=device)


def ints(values, device: str) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def start(state: DecodeState, slot: int, length: int, last_id: int = 100, target: int = 10_000, stops=True):
    """A row with distinct blocks, one more than it needs."""
    state.set_row(slot, last_id, length, target, stops)
    blocks = [1 + slot * 50 + i * 3 for i in range(length // BLOCK_SIZE + 2)]
    state.set_blocks(slot, 0, blocks)
    return blocks


def reported(state: DecodeState) -> torch.Tensor:
    """The ring, behind all ticks."""
    state.tick.item()
    return state.ring


def poison(buffers: PassBuffers) -> None:
    tables = buffers.tables
    for tensor in (tables.context_lens, tables.block_tables, tables.positions, tables.slots):
        tensor.fill_(0x7F7F7F7F)


def test_a_decode_pass(device):
    state = state_on(device)
    lengths = {5: 1, 0: 16, 2: 17, 3: 600}
    blocks = {slot: start(state, slot, length, last_id=slot + 20) for slot, length in lengths.items()}
    buffers = PassBuffers.create(state, num_decode=6, num_chunks=0, num_tokens=6, num_sampled=6)
    poison(buffers)
    order = [3, 5, 0, 2, -1, 6]  # 6 never started, -1 is padding
    buffers.slots.copy_(ints(order, device))
    fill_pass(state, buffers)
    tables = buffers.tables
    for i, slot in enumerate(order):
        length = lengths.get(slot, 0)
        assert tables.context_lens[i] == length
        assert tables.positions[i] == max(length - 1, 0)
        last = (
            blocks[slot][(length - 1) // BLOCK_SIZE] * BLOCK_SIZE + (length - 1) % BLOCK_SIZE if length else 0
        )
        assert tables.slots[i] == last
        assert buffers.ids[i] == (slot + 20 if length else 0)
        table = blocks.get(slot, [])
        assert tables.block_tables[i].tolist() == table + [0] * (48 - len(table))
    assert tables.query_starts.tolist() == list(range(7))


def test_a_mixed_pass(device):
    state = state_on(device)
    decode = start(state, 1, 33, last_id=55)
    first, second = start(state, 4, 1), start(state, 6, 1)
    state.set_blocks(4, 0, list(range(200, 240)))
    buffers = PassBuffers.create(state, num_decode=2, num_chunks=3, num_tokens=400, num_sampled=2)
    poison(buffers)
    buffers.slots.copy_(ints([1, -1, 4, 6, -1], device))
    buffers.ends.copy_(ints([0, 0, 310, 5, 0], device))
    buffers.tables.query_starts.copy_(ints([0, 1, 2, 302, 307, 307], device))
    prompt = torch.arange(1000, 1305, dtype=torch.int32, device=device)
    buffers.ids[2:307] = prompt
    buffers.ids[307:] = 77
    fill_pass(state, buffers)
    tables = buffers.tables
    assert tables.context_lens.tolist() == [33, 0, 310, 5, 0]
    positions = [32, 0, *range(10, 310), *range(5)] + [0] * 93
    assert tables.positions.tolist() == positions
    expected = [decode[2] * BLOCK_SIZE, 0]
    expected += [(200 + p // BLOCK_SIZE) * BLOCK_SIZE + p % BLOCK_SIZE for p in range(10, 310)]
    expected += [second[0] * BLOCK_SIZE + p for p in range(5)] + [0] * 93
    assert tables.slots.tolist() == expected
    assert buffers.ids.tolist() == [55, 0, *prompt.tolist()] + [0] * 93
    assert tables.block_tables[4].tolist() == [0] * 48 and first
    assert state.rows[4, 1] == 310 and state.rows[6, 1] == 5 and state.rows[1, 1] == 33


def test_rows_advance_and_end_without_the_host(device):
    state = state_on(device)
    start(state, 0, 10)
    start(state, 1, 10, target=12)
    start(state, 2, 10)
    start(state, 3, 10, stops=False)
    start(state, 4, 10)
    slots = ints([4, 3, 2, 1, 0, -1], device)
    buffers = PassBuffers.create(state, num_decode=6, num_chunks=0, num_tokens=6, num_sampled=6)
    buffers.slots.copy_(slots)
    finite = ints([1] * 6, device)
    ticks = [[11, 7, 7, 13, 14, 3], [21, 22, 23, 24, 25, 3], [31, 9, 33, 34, 35, 3]]
    for tick, sampled in enumerate(ticks):
        fill_pass(state, buffers)
        finite.fill_(1)
        if tick == 1:
            finite[0] = 0
        advance(state, slots, ints(sampled, device), finite)
    assert reported(state)[0, :6].tolist() == [11, 7, 7, 13, 14, ENDED]
    assert reported(state)[1, :6].tolist() == [NOT_FINITE, 22, ENDED, 24, 25, ENDED]
    assert reported(state)[2, :6].tolist() == [ENDED, 9, ENDED, ENDED, 35, ENDED]
    assert state.tick.item() == 3
    assert state.rows[:5, 3].tolist() == [1, 0, 0, 1, 0]
    fill_pass(state, buffers)
    tables = buffers.tables
    assert tables.context_lens.tolist() == [0, 13, 0, 0, 13, 0]
    assert tables.positions.tolist() == [0, 12, 0, 0, 12, 0]
    assert [int(s) // BLOCK_SIZE > 0 for s in tables.slots] == [False, True, False, False, True, False]
    assert buffers.ids.tolist() == [0, 9, 0, 0, 35, 0]


def test_the_ring_wraps_and_a_row_starts_again(device):
    state = state_on(device)
    slots, finite = ints([2], device), ints([1], device)
    start(state, 2, 3)
    for token in range(10, 16):
        advance(state, slots, ints([token], device), finite)
    assert reported(state)[:, 0].tolist() == [14, 15, 12, 13]
    state.set_row(2, 5, 1, 2, True)
    advance(state, slots, ints([50], device), finite)
    advance(state, slots, ints([51], device), finite)
    assert reported(state)[2:, 0].tolist() == [50, ENDED]


def test_accepted_tokens_are_counted_for_penalised_rows(device):
    state, sampler = state_on(device), SamplerState.create(8, 30, device)
    plain = RowParameters(0.7, 40, 0.9, 0.0, 1.0, 0.0, 0.0, seed=1)
    penalised = RowParameters(0.7, 40, 0.9, 0.0, 1.1, 0.5, 0.0, seed=1)
    for slot, parameters in ((0, plain), (1, penalised), (3, penalised)):
        start(state, slot, 4, stops=False)
        sampler.set_row(slot, parameters, prompt_ids=[3, 4, 29, 31], answer_ids=[4, 4])
    slots, finite = ints([3, 0, 1], device), ints([1, 1, 1], device)
    advance(state, slots, ints([4, 4, 11], device), finite, sampler)
    advance(state, slots, ints([4, 4, 3], device), ints([0, 1, 1], device), sampler)
    advance(state, slots, ints([4, 4, 29], device), finite, sampler)
    marked = -(1 << 15)
    assert sampler.counts[0].abs().sum() == 0
    assert {t: int(n) for t, n in enumerate(sampler.counts[3]) if n} == {3: marked, 4: marked + 3, 29: marked}
    expected = {3: marked + 1, 4: marked + 2, 11: 1, 29: marked + 1}
    assert {t: int(n) for t, n in enumerate(sampler.counts[1]) if n} == expected


def test_counts_saturate(device):
    state, sampler = state_on(device), SamplerState.create(2, 8, device)
    start(state, 1, 4, stops=False)
    sampler.set_row(1, RowParameters(0.7, 40, 0.9, 0.0, 1.0, 0.5, 0.0, seed=1), [2], [2] * 40_000)
    advance(state, ints([1], device), ints([2], device), ints([1], device), sampler)
    assert sampler.counts[1].tolist() == [0, 0, -1, 0, 0, 0, 0, 0]


def test_too_many_end_ids_are_refused(device):
    with pytest.raises(ValueError, match="at most 16"):
        state_on(device, end_ids=range(17))


def test_ticks_replay_from_a_graph(device, full):
    if not full:
        pytest.skip("graphs need a GPU")
    state = state_on(device)
    start(state, 0, 14)
    start(state, 1, 14, target=17)
    buffers = PassBuffers.create(state, num_decode=2, num_chunks=0, num_tokens=2, num_sampled=2)
    buffers.slots.copy_(ints([0, 1], device))
    finite = ints([1, 1], device)

    def tick() -> None:
        fill_pass(state, buffers)
        advance(state, buffers.slots, buffers.tables.positions + 100, finite)

    saved = state.rows.clone()
    tick()
    state.rows.copy_(saved)
    state.tick.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tick()
    for _ in range(4):
        graph.replay()
    assert reported(state)[:, 0].tolist() == [113, 114, 115, 116]
    assert reported(state)[:, 1].tolist() == [113, 114, 115, ENDED]
