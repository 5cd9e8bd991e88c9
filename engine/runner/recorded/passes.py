"""Passes of few tokens, recorded once by their shape and run again with less work of the host."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.model.decoder import Decoder
from engine.runner.input_batch import InputBatch
from kernels.contract import PassLayout, RecordedPass

MOST_TOKENS = 32
"""Of a recording: with more, what the host does is little beside what is computed."""
MOST_KEPT = 128
"""Recordings; those that were not used for longest go. One of 30 layers is 160 kilobytes."""


class _PassShape(NamedTuple):
    tokens: int
    decode: int
    """Sequences that decode, with their drafts."""
    chunk: int
    """Tokens of the prompt that is read beside them."""
    logits: int
    """Rows that want them."""
    alone: bool
    """Whether one thread computes all of it."""

    @property
    def ends(self) -> bool:
        """Whether the chunk is a prompt's last."""
        return self.chunk > 0 and self.logits > self.tokens - self.chunk

    @property
    def kind(self) -> tuple[bool, bool]:
        """What passes have in common of which none can be recorded."""
        return self.chunk > 0, self.alone


class RecordedPasses:
    """Of one model's decoder and KV."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder, self._recorder = decoder, decoder.ops.recorder()
        self._recorded: OrderedDict[_PassShape, RecordedPass] = OrderedDict()
        self._seen: set[_PassShape] = set()
        """Those that end a prompt and came once."""
        self._refused: dict[tuple[bool, bool], int] = {}
        """The fewest tokens of a kind of which nothing could be recorded."""
        self.timed = True
        """Whether the last pass took as long as others like it."""

    def logits(self, packed: InputBatch, layouts: Sequence[PassLayout], kv: Sequence[Any]) -> Tensor | None:
        """float32 [R, vocab] of a pass of decode rows, and at most one chunk; None where none is recorded.

        They last until the next pass.
        """
        self.timed = True
        if not self._may_be(_shape(packed, layouts[0])):
            return None
        residual = self._decoder.embed(packed.ids)
        # The first operation of a pass decides how many threads compute it.
        shape = _shape(packed, layouts[0])
        if not self._may_be(shape):
            return None
        rows = None if shape.logits == shape.tokens else packed.logit_rows
        kept = self._recorded.get(shape)
        logits = None if kept is None else kept.run(residual, layouts, rows)
        if logits is None:
            # There was none, or contexts have outgrown it.
            self.timed = False
            if shape.ends and shape not in self._seen:
                # Such shapes seldom come again.
                self._seen.add(shape)
                return None
            return self._recorded_now(shape, residual, layouts, rows, kv)
        self._recorded.move_to_end(shape)
        return logits

    def _recorded_now(
        self,
        shape: "_PassShape",
        residual: Tensor,
        layouts: Sequence[PassLayout],
        rows: Tensor | None,
        kv: Sequence[Any],
    ) -> Tensor | None:
        made = self._record(residual, layouts, rows, kv)
        if made is None:
            self._recorded.pop(shape, None)
            self._refused[shape.kind] = min(shape.tokens, self._refused.get(shape.kind, shape.tokens))
            return None
        self._recorded[shape] = made
        self._recorded.move_to_end(shape)
        if len(self._recorded) > MOST_KEPT:
            self._recorded.popitem(last=False)
        return made.logits

    @property
    def can_record(self) -> bool:
        """Whether anything computes passes that can be."""
        return self._recorder is not None

    def _may_be(self, shape: _PassShape) -> bool:
        unfit = shape.tokens > MOST_TOKENS or not shape.decode or not shape.logits or shape.chunk < 0
        if self._recorder is None or unfit:
            return False
        return shape.tokens < self._refused.get(shape.kind, MOST_TOKENS + 1)

    def _record(
        self, residual: Tensor, layouts: Sequence[PassLayout], rows: Tensor | None, kv: Sequence[Any]
    ) -> RecordedPass | None:
        decoder = self._decoder
        assert self._recorder is not None

        def prepare(layouts: Sequence[PassLayout]) -> Any:
            return decoder.ops.prepare(layouts, kv, decoder.rotations)

        def compute(residual: Tensor, prepared: Any, rows: Tensor | None) -> Tensor:
            delta, branch = decoder.through(residual, prepared)
            return decoder.ops.logits(decoder.head(residual, delta, branch, rows))

        return self._recorder.record(prepare, layouts, residual, rows, compute)


def _shape(packed: InputBatch, layout: PassLayout) -> _PassShape:
    """With a chunk of -1 where several are read."""
    chunks = layout.query_lens[layout.num_decode :]
    chunk = sum(chunks) if len(chunks) < 2 else -1
    alone = torch.get_num_threads() == 1
    return _PassShape(len(packed.ids), layout.num_decode, chunk, len(packed.logit_rows), alone)
