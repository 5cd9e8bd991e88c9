"""Passes of a few decode rows, recorded once by their number and run again with less work of the host."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from engine.model.decoder import Decoder
from engine.runner.input_batch import InputBatch
from kernels.contract import PassLayout

MOST_ROWS = 8
"""Of a recording: with more, what the host does is little beside what is computed."""


class RecordedPasses:
    """Of one model's decoder and KV."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._recorded: dict[tuple[int, bool], Any] = {}
        """By rows, and whether one thread computes them; None where nothing can be recorded."""

    def logits(self, packed: InputBatch, layouts: Sequence[PassLayout], kv: Sequence[Any]) -> Tensor | None:
        """float32 [T, vocab] of a pass of decode rows alone; None for others, and where none is recorded."""
        rows = len(packed.ids)
        if rows > MOST_ROWS or layouts[0].num_decode != rows or len(packed.sampled) != rows:
            return None
        if not self._may_be(rows):
            return None
        residual = self._decoder.embed(packed.ids)
        # The first operation of a pass decides how many threads compute it.
        if not self._may_be(rows):
            return None
        key = rows, torch.get_num_threads() == 1
        if key not in self._recorded:
            self._recorded[key] = self._record(residual, layouts, kv)
            return None
        logits: Tensor | None = self._recorded[key].run(residual, layouts)
        if logits is None:
            # Contexts have outgrown it: the next pass records one with more room.
            del self._recorded[key]
        return logits

    def _may_be(self, rows: int) -> bool:
        key = rows, torch.get_num_threads() == 1
        return key not in self._recorded or self._recorded[key] is not None

    def _record(self, residual: Tensor, layouts: Sequence[PassLayout], kv: Sequence[Any]) -> Any | None:
        decoder = self._decoder

        def prepare(layouts: Sequence[PassLayout]) -> Any:
            return decoder.ops.prepare(layouts, kv, decoder.rotations)

        def compute(residual: Tensor, prepared: Any) -> Tensor:
            delta, branch = decoder.through(residual, prepared)
            return decoder.ops.logits(decoder.head(residual, delta, branch, None))

        return decoder.ops.record(prepare, layouts, residual, compute)
