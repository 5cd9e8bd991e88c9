"""Ticks that only the device drives: tables, a stand-in for a model, sampler, advance."""

import torch

from engine.api.request import Request, SamplingParams
from engine.runner.sampler import sample_rows
from engine.scheduler.sequence import Sequence
from kernels.sampling.sampler import sample
from kernels.state.decode_state import ENDED, DecodeState, PassBuffers, advance, fill_pass
from kernels.state.sampler_state import RowParameters, SamplerState

VOCAB = 120
TICKS = 6
ROWS = [
    SamplingParams(temperature=0.0),
    SamplingParams(),
    SamplingParams(temperature=1.2, top_k=0, top_p=0.9, min_p=0.0),
    SamplingParams(temperature=0.0, repetition_penalty=1.5, frequency_penalty=2.0),
    SamplingParams(temperature=0.8, presence_penalty=1.5, logit_bias={7: 3.0}),
]
PROMPT = (3, 14, 15)


def following(table: torch.Tensor, params: SamplingParams, slot: int) -> list[int]:
    """What the host's sampler gives, one token after the other."""
    sequence = Sequence(slot, 1, Request(PROMPT, params), arrival=0.0, seed=slot * 31)
    for _ in range(TICKS):
        result = sample_rows(table[sequence.token_ids[-1]][None], [sequence])
        sequence.token_ids.append(result.ids[slot])
    return sequence.token_ids[len(PROMPT) :]


def test_replayed_ticks_give_what_the_host_gives(device, full):
    table = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(0)) * 2
    wanted = [following(table, params, slot) for slot, params in enumerate(ROWS)]
    end_id = wanted[0][3]
    state = DecodeState.create(8, 4, 16, [end_id], TICKS, device)
    sampler = SamplerState.create(8, VOCAB, device)
    for slot, p in enumerate(ROWS):
        penalties = (p.repetition_penalty, p.frequency_penalty, p.presence_penalty)
        row = RowParameters(p.temperature, p.top_k, p.top_p, p.min_p, *penalties, seed=slot * 31)
        sampler.set_row(slot, row, PROMPT, (), p.logit_bias)
        state.set_row(slot, PROMPT[-1], len(PROMPT), 100, ends_at_end_ids=slot == 0)
        state.set_blocks(slot, 0, [slot + 1])
    order = [4, 2, 0, -1, 3, 1]
    buffers = PassBuffers.create(state, num_decode=6, num_chunks=0, num_tokens=6, num_sampled=6)
    buffers.slots.copy_(torch.tensor(order, dtype=torch.int32))
    on_device = table.to(device)

    def tick() -> None:
        fill_pass(state, buffers)
        logits = on_device[buffers.ids.long()][None]
        ids, finite = sample(logits, sampler, buffers.slots, state.rows[:, 1])
        advance(state, buffers.slots, ids, finite, sampler)

    if full:
        saved = state.rows.clone(), sampler.counts.clone()
        tick()
        state.rows.copy_(saved[0])
        sampler.counts.copy_(saved[1])
        state.tick.zero_()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tick()
        for _ in range(TICKS):
            graph.replay()
    else:
        for _ in range(TICKS):
            tick()
    assert state.tick.item() == TICKS
    ring = state.ring
    for i, slot in enumerate(order):
        expected = [ENDED] * TICKS
        if slot >= 0:
            expected = list(wanted[slot])
        if slot == 0:
            end = expected.index(end_id)
            expected[end + 1 :] = [ENDED] * (TICKS - end - 1)
        assert ring[:, i].tolist() == expected, slot
