"""Passes of a few decode rows, recorded once by their number and run again with less work of the host."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.model.decoder import Decoder
from engine.runner.input_batch import InputBatch
from kernels.contract import PassLayout

log = logging.getLogger(__name__)

MOST_ROWS = 4
"""Of a recording: with more, what the host does is little beside what is computed."""


@dataclass(slots=True)
class _Recorded:
    """made: None where nothing can be recorded; proved: by another pass, which gave the same both ways."""

    made: Any | None
    proved: bool = False


class RecordedPasses:
    """Of one model's decoder and KV."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._recorded: dict[tuple[int, int], _Recorded] = {}
        """By rows and threads."""

    def logits(self, packed: InputBatch, layouts: Sequence[PassLayout], kv: Sequence[Any]) -> Tensor | None:
        """float32 [T, vocab] of a pass of decode rows alone; None for others, and where none is recorded."""
        rows = len(packed.ids)
        if rows > MOST_ROWS or layouts[0].num_decode != rows or len(packed.sampled) != rows:
            return None
        key = rows, torch.get_num_threads()
        known = self._recorded.get(key)
        if known is not None and known.made is None:
            return None
        residual = self._decoder.embed(packed.ids)
        if known is None:
            known = self._recorded[key] = _Recorded(self._record(residual, layouts, kv))
            return None
        logits: Tensor | None = known.made.run(residual, layouts)  # type: ignore[union-attr]
        if logits is None:
            # Contexts have outgrown it: the next pass records one with more room.
            del self._recorded[key]
        elif not known.proved:
            return self._prove(known, logits, residual, layouts, kv)
        return logits

    def _record(self, residual: Tensor, layouts: Sequence[PassLayout], kv: Sequence[Any]) -> Any | None:
        decoder = self._decoder
        prepared = decoder.ops.prepare(layouts, kv, decoder.rotations)
        return decoder.ops.record(prepared, residual, self._compute)

    def _compute(self, residual: Tensor, prepared: Any) -> Tensor:
        """As a pass whose rows all get a token."""
        decoder = self._decoder
        delta, branch = decoder.through(residual, prepared)
        return decoder.ops.logits(decoder.head(residual, delta, branch, None))

    def _prove(
        self,
        known: _Recorded,
        logits: Tensor,
        residual: Tensor,
        layouts: Sequence[PassLayout],
        kv: Sequence[Any],
    ) -> Tensor:
        """What a pass gives without the recording, which is kept where it has given the same."""
        prepared = self._decoder.ops.prepare(layouts, kv, self._decoder.rotations)
        expected = self._compute(residual, prepared)
        known.proved = torch.equal(logits, expected)
        if not known.proved:
            log.error("a recorded pass gave other logits; passes of so many rows are not recorded")
            known.made = None
        return expected
