"""Passes of a few tokens of a divided model: captured, but for what the processor does between their parts.

Every token is a decode row, so one shape serves rows, rows with drafts behind them and the shortest chunks.
What a pass reads has fixed places in host memory, which it copies itself.

The first pass of each size is launched kernel by kernel as well, which writes the same KV again: a size whose
logits are others is never replayed.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.device.stream import DeviceStream
from engine.model.split.split_decoder import SplitDecoder
from engine.runner.input_batch import InputBatch
from engine.runner.split.split_kv import SplitKV
from engine.scheduler.buckets import round_up
from kernels.cuda.activations import PassTables
from kernels.cuda.crossing import Cut, FixedCrossing

SIZES = (1, 2, 4, 8)
"""Tokens of such a pass."""
_ALIGN = 16
_MOST_ERROR = 0.05
"""Of squares, against logits launched kernel by kernel: experts may differ where two are as good."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepSize:
    """Tokens, padding included, and whether some read what others of the pass write."""

    tokens: int
    shares_kv: bool


ALL_SIZES = tuple(StepSize(tokens, shares) for shares in (False, True) for tokens in SIZES if tokens > shares)


class CapturedSteps:
    """Those of one runner."""

    def __init__(self, decoder: SplitDecoder, kv: SplitKV, block_size: int, stream: DeviceStream) -> None:
        self._decoder, self._kv, self._stream = decoder, kv, stream
        self._width = -(-decoder.config.context_length // block_size)
        self._steps: dict[StepSize, _Step] = {}
        self._proved: dict[StepSize, bool] = {}

    def try_out(self) -> None:
        """Queue the device's part of a pass of each size over scratch pages, without the processor's."""
        for size in ALL_SIZES:
            self._step(size).queue(lambda _between: None)

    def capture(self) -> None:
        """All sizes, which were tried out."""
        for size in ALL_SIZES:
            self._step(size).capture()

    def run(self, packed: InputBatch, launched: Callable[[], Tensor]) -> Tensor:
        """Logits [R, vocab] of the pass's `logit_rows`, until the next pass.

        launched: computes them kernel by kernel, as for a pass that is too large.
        """
        count = len(packed.ids)
        tokens = round_up(count, SIZES)
        if tokens is None:
            return launched()
        size = StepSize(tokens, count > len(packed.layouts[0].query_lens))
        proved = self._proved.get(size)
        if proved is False or (proved is None and not len(packed.logit_rows)):
            return launched()
        logits = self._step(size).run(packed)
        rows = packed.logit_rows
        logits = logits[:count] if len(rows) == count else logits[rows.to(logits.device)]
        return logits if proved else self._prove(size, logits, launched())

    def _prove(self, size: StepSize, replayed: Tensor, expected: Tensor) -> Tensor:
        """Whether later passes of a size are replayed; returns what was expected."""
        error = (replayed - expected).square().sum() / expected.square().sum()
        if not expected.isfinite().all():
            return expected
        self._proved[size] = bool(error <= _MOST_ERROR)
        if not self._proved[size]:
            _log.warning(
                "captured passes of %d tokens differ from launched ones (%.2g of squares): not used",
                size.tokens, float(error),
            )  # fmt: skip
        return expected

    def close(self) -> None:
        """Forget what was captured; nothing may be queued any more."""
        for step in self._steps.values():
            step.close()
        self._steps.clear()

    def _step(self, size: StepSize) -> "_Step":
        if size not in self._steps:
            self._steps[size] = _Step(self._decoder, self._kv, size, self._width, self._stream)
        return self._steps[size]


class _Step:
    """One size: its places in host memory and on the device, and what launches it."""

    def __init__(
        self, decoder: SplitDecoder, kv: SplitKV, size: StepSize, width: int, stream: DeviceStream
    ) -> None:
        self._decoder, self._kv, self._size, self._stream = decoder, kv, size, stream
        device, tokens = decoder.ops.device, size.tokens
        self._crossing = FixedCrossing(device)
        self._count = tokens
        self._logits = torch.empty(0)
        self._replay: Callable[[], None] | None = None
        sizes = [2 * tokens] * kv.num_pools + [tokens] * 3 + [tokens * width] * kv.num_pools
        padded = [-(-one // _ALIGN) * _ALIGN for one in sizes]
        self._host = stream.host_tensor(sum(padded))
        self._inputs = torch.zeros(sum(padded), dtype=torch.int32, device=device)
        self._places = [
            [part[:one] for part, one in zip(memory.split(padded), sizes, strict=True)]
            for memory in (self._host, self._inputs)
        ]
        self._starts = torch.arange(tokens + 1, dtype=torch.int32, device=device)

    def run(self, packed: InputBatch) -> Tensor:
        """Logits [T, vocab], padding's included."""
        self._fill(packed)
        if self._decoder.placement.layers:
            layouts = self._kv.by_group(packed.layouts)
            self._residual[: self._count] = self._decoder.before(packed.ids, layouts, self._kv.groups)
        if self._replay is None:
            self.capture()
        assert self._replay is not None
        self._replay()
        return self._logits

    def capture(self) -> None:
        """It must have been queued once, so that it is compiled."""
        self._replay = self._stream.capture_parts(self.queue)

    def close(self) -> None:
        """What was captured refers to this: neither, nor the weights, would go by itself."""
        self._replay = None

    def queue(self, cut: Cut) -> None:
        """The device's part, which asks the processor for its own between."""
        decoder, own = self._decoder, self._places[1]
        self._inputs.copy_(self._host, non_blocking=True)
        pools = self._kv.num_pools
        slots, (ids, contexts, positions), tables = own[:pools], own[pools : pools + 3], own[pools + 3 :]
        tokens = self._size.tokens
        passes = [
            PassTables(
                self._starts, contexts, table.view(tokens, -1), positions, slot.view(torch.int64),
                num_decode=tokens, num_tokens=tokens, shares_kv=self._size.shares_kv,
            )
            for table, slot in zip(tables, slots, strict=True)
        ]  # fmt: skip
        start = self._crossing.up(self._residual) if decoder.placement.layers else ids
        exchange = decoder.exchange(self._crossing, cut, lambda: self._count)
        self._logits = decoder.queue(start, self._kv.by_group(passes), self._kv.groups, exchange)

    @property
    def _residual(self) -> Tensor:
        shape = self._size.tokens, self._decoder.config.hidden_size
        return self._crossing.buffer("residual", shape, torch.float32)

    def _fill(self, packed: InputBatch) -> None:
        pools, count = self._kv.num_pools, len(packed.ids)
        arrays = [part.numpy() for part in self._places[0]]
        slots, (ids, contexts, positions), tables = (
            arrays[:pools], arrays[pools : pools + 3], arrays[pools + 3 :],
        )  # fmt: skip
        for part in (*slots, ids, contexts, positions):
            part[:] = 0
        self._count = count
        layout = packed.layouts[0]
        ids[:count] = packed.ids.numpy()
        positions[:count] = layout.positions.numpy()
        contexts[:count] = positions[:count] + 1
        owners = np.repeat(np.arange(len(layout.query_lens)), layout.query_lens)
        for own, slot, table in zip(packed.layouts, slots, tables, strict=True):
            slot.view(np.int64)[:count] = own.slot_mapping.numpy()
            rows = table.reshape(self._size.tokens, -1)
            for row, owner in enumerate(owners):
                pages = own.block_tables[owner]
                rows[row, : len(pages)] = pages
