"""Finds out whose fault a failed pass is, so that nobody else ends with it.

A pass may run again: it reads tokens that are known, writes the same KV to the same slots, and its
draws depend on seed and position alone. So a pass that raises is tried once more whole, then in
halves, down to sequences by themselves, always without draft tokens; who fails alone is the victim. A
fault that does not come back costs nobody anything but time: at most two passes per sequence of the
batch, and those small.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from engine.api.errors import DeviceLostError
from engine.device.faults import check_device, describe, is_lost, is_out_of_memory
from engine.runner.base import Runner
from engine.runner.sampler import Sampled
from engine.scheduler.plan import ModelBatch, PrefillChunk

log = logging.getLogger(__name__)

_SMALLEST_CHUNK = 16
"""Tokens of a chunk that is not halved any more when memory is short."""


class PassRecovery:
    """Runs a failed batch again, in parts."""

    def __init__(self, device: torch.device, free_memory: Callable[[ModelBatch], None]) -> None:
        """free_memory: gives back what is cached; called with a batch that found no memory."""
        self._device = device
        self._free_memory = free_memory

    def run(self, runner: Runner, batch: ModelBatch, error: Exception) -> Sampled:
        """What `batch` gives although its pass raised `error`; a cause for every victim.

        Raises `DeviceLostError` when the device computes nothing any more.
        """
        log.warning("a pass of model %s failed and is run again", batch.model, exc_info=error)
        self._clean_up(runner, batch, error)
        batch = replace(batch, drafts={}, slice_ms=float("inf"))
        result = Sampled({}, {})
        if batch.sequences:
            self._try(runner, batch, result)
        for sequence_id, cause in result.failed.items():
            log.error("sequence %s ends: %s", sequence_id, cause)
        return result

    def _try(self, runner: Runner, batch: ModelBatch, result: Sampled) -> bool:
        """Run a batch, in parts if need be; False when somebody of it failed."""
        try:
            made = runner.run(batch)
        except Exception as error:
            self._clean_up(runner, batch, error)
            return self._try_parts(runner, batch, error, result)
        result.update(made)
        return True

    def _try_parts(self, runner: Runner, batch: ModelBatch, error: Exception, result: Sampled) -> bool:
        parts = _halves(batch)
        if parts:
            fine = [self._try(runner, part, result) for part in parts]
            return all(fine)
        if is_out_of_memory(error) and (pieces := _smaller_chunks(batch)):
            return all(self._try(runner, piece, result) for piece in pieces)
        for sequence in batch.sequences:
            result.failed[sequence.sequence_id] = _cause(error)
        return False

    def _clean_up(self, runner: Runner, batch: ModelBatch, error: Exception) -> None:
        """Make the next pass possible; raises `DeviceLostError` when there is none."""
        if is_lost(error):
            raise DeviceLostError(describe(error)) from error
        runner.forget()
        try:
            check_device(self._device)
        except Exception as lost:
            if not is_out_of_memory(lost):
                raise DeviceLostError(describe(lost)) from error
        if is_out_of_memory(error):
            self._free_memory(batch)


def part_of(batch: ModelBatch, keep: Iterable[int]) -> ModelBatch:
    """The batch with the given sequences alone, by id."""
    kept = set(keep)
    return replace(
        batch,
        decode=[sequence for sequence in batch.decode if sequence.sequence_id in kept],
        prefill=[chunk for chunk in batch.prefill if chunk.sequence.sequence_id in kept],
    )


def _halves(batch: ModelBatch) -> list[ModelBatch]:
    """Rows and chunks apart, else half of the sequences each; nothing for a sequence by itself."""
    ids = [sequence.sequence_id for sequence in batch.sequences]
    if len(ids) < 2:
        return []
    middle = len(batch.decode) if batch.decode and batch.prefill else len(ids) // 2
    return [part_of(batch, ids[:middle]), part_of(batch, ids[middle:])]


def _smaller_chunks(batch: ModelBatch) -> list[ModelBatch]:
    """A lone chunk as two, to be run one after the other; nothing where it is small already."""
    if not batch.prefill or batch.prefill[0].length <= _SMALLEST_CHUNK:
        return []
    chunk = batch.prefill[0]
    half = chunk.length // 2
    first = PrefillChunk(chunk.sequence, chunk.start, half)
    rest = PrefillChunk(chunk.sequence, chunk.start + half, chunk.length - half)
    return [replace(batch, prefill=[first]), replace(batch, prefill=[rest])]


def _cause(error: Exception) -> str:
    if is_out_of_memory(error):
        return (
            f"the device has no memory for this conversation's next step ({describe(error)}); close other "
            "programs or models, or shorten the conversation"
        )
    return f"the model's step failed: {describe(error)}"
