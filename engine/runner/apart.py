"""Choosing the tokens of a pass after it, where rows of the device do not know all that decides.

A pass whose rows are held to something, or ask for log-probabilities, is captured up to its logits. While
the device computes them, the host learns the last tokens and what may follow; then it launches the sampler
by itself. So a device waits for a mask only where that takes longer than the pass.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.device.stream import DeviceStream, Mark
from engine.runner.cuda_graph import CUDAGraphPass
from engine.runner.in_flight import ChosenApart, sampled_rows
from engine.runner.logits.logprobs import logprobs_of
from engine.runner.persistent_batch import PersistentBatch
from engine.runner.sampler import mask_words, wait_for_masks
from engine.scheduler.plan import ModelBatch
from kernels.sampling.sampler import sample
from kernels.state.decode_state import LENGTH, DecodeState, advance
from kernels.state.sampler_state import SamplerState


@dataclass(frozen=True, slots=True)
class Computed:
    """A pass that was launched up to its logits."""

    one: CUDAGraphPass
    batch: ModelBatch
    done: Mark


def choose(logits: Tensor, state: DecodeState, sampler: SamplerState, slots: Tensor) -> Tensor:
    """The end of every pass: sample, and take the rows one token further; returns the ids."""
    ids, finite = sample(logits, sampler, slots, state.rows[:, LENGTH.value])
    advance(state, slots, ids, finite, sampler)
    return ids


def choose_apart(
    computed: Computed,
    rows: PersistentBatch,
    state: DecodeState,
    sampler: SamplerState,
    stream: DeviceStream,
) -> ChosenApart:
    """Choose the tokens of a pass; rows without a mask in time are computed again in a later one."""
    placed = sampled_rows(computed.batch, computed.one.size)
    held = wait_for_masks([one for _, one, _ in placed], lambda: not computed.done.query())
    masked = [one for _, one, _ in placed if one.matcher is not None and one.sequence_id not in held]
    if masked:
        words = mask_words(masked)
        # From memory that is not pinned the host would wait for the pass.
        rows.set_masks(masked, stream.host_tensor(*words.shape).copy_(words))
    slots = computed.one.buffers.sampled_slots
    if held:
        left_out = torch.tensor([row for row, one, _ in placed if one.sequence_id in held])
        slots = slots.index_fill(0, left_out.to(slots.device, non_blocking=True), -1)
    logits = computed.one.logits
    assert logits is not None
    ids = choose(logits, state, sampler, slots)
    asking = [
        (row, one)
        for row, one, _ in placed
        if one.request.top_logprobs is not None and one.sequence_id not in held
    ]
    logprobs = _logprobs(logits, ids, [row for row, _ in asking], stream) if asking else None
    return ChosenApart(placed, held, [one for _, one in asking], logprobs)


def _logprobs(logits: Tensor, ids: Tensor, places: list[int], stream: DeviceStream) -> Tensor:
    """What `logprobs_of` tells, on its way to the host."""
    index = torch.tensor(places).to(ids.device, non_blocking=True)
    told = logprobs_of(logits[:, index].sum(dim=0), ids[index])
    return stream.host_tensor(*told.shape).copy_(told, non_blocking=True)
