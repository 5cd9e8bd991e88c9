"""Passes over prompts of a divided model that the GPU computes alone, layer by layer over several ticks."""

import time
from collections.abc import Generator
from dataclasses import replace

import torch
from torch import Tensor

from engine.device.stream import DeviceStream
from engine.model.split.split_decoder import SplitDecoder
from engine.runner.input_batch import InputBatch, pack
from engine.runner.sampler import Sampled, sample_rows
from engine.runner.split.split_kv import SplitKV
from engine.scheduler.plan import ModelBatch, PrefillChunk
from kernels.contract import Operations

_HOST = torch.device("cpu")
MOST_TRIED = 256
"""Tokens for which the processor is measured at most."""


def fewest_long(decoder: SplitDecoder, kv: SplitKV, ops: Operations) -> int | None:
    """Tokens from which the bus brings the processor's weights sooner than the processor computes with them.

    Both are measured. None where weights cannot cross over, or where nobody knows the bus.
    """
    if not decoder.streams or ops.host_gb_s is None:
        return None
    crossing_ms, tokens = decoder.streamed_bytes / ops.host_gb_s / 1e6, 1
    # Of the first time much is what is made once.
    while tokens < MOST_TRIED and min(decoder.host_ms(tokens, kv.groups) for _ in range(2)) < crossing_ms:
        tokens *= 2
    return tokens


class LongPass:
    """The one that goes on, of a runner whose passes never overlap."""

    def __init__(self, decoder: SplitDecoder, kv: SplitKV, block_size: int, stream: DeviceStream) -> None:
        self._decoder, self._kv, self._block_size, self._stream = decoder, kv, block_size, stream
        self._chunks: list[object] = []
        self._packed: InputBatch | None = None
        self._steps: Generator[None, None, Tensor] | None = None

    def go_on(self, batch: ModelBatch, until: float) -> Sampled:
        """Compute layers of the batch's chunks up to that time of `time.perf_counter`, one at least.

        The pass begins anew where they are not those that it was left with.
        """
        chunks = [_identity(chunk) for chunk in batch.prefill]
        if self._steps is None or self._packed is None or chunks != self._chunks:
            self._chunks, self._packed = chunks, pack(replace(batch, decode=[]), self._block_size, _HOST)
            layouts = self._kv.by_group(self._packed.layouts)
            rows = self._packed.logit_rows
            self._steps = self._decoder.read(self._packed.ids, layouts, self._kv.groups, rows)
        packed = self._packed
        try:
            while True:
                next(self._steps)
                self._stream.synchronize()
                if time.perf_counter() >= until:
                    return Sampled({}, {}, unfinished={batch.model}, timed=False)
        except StopIteration as end:
            self.drop()
            sampled = sample_rows(end.value, packed.sampled) if packed.sampled else Sampled({}, {})
        sampled.timed = False
        return sampled

    def drop(self) -> None:
        """Forget what was begun."""
        self._steps = self._packed = None


def _identity(chunk: PrefillChunk) -> object:
    """What must be as it was for a pass to go on: pages that were given back may have been another's."""
    sequence = chunk.sequence
    pages = [list(window.pages) for window in sequence.windows]
    place = chunk.start, chunk.length, sequence.preemptions
    return sequence.sequence_id, place, [*sequence.block_table], pages
