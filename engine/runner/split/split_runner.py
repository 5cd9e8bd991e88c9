"""Runs batches of a model of which the processor computes a part (`engine.model.split.placement`).

A pass at a time, in a stream of its own and waited for: its time is what the cost model learns from, and
nothing that it reads or writes is in use when the next tick begins. Passes of a few tokens are captured
(`engine.runner.split.captured_steps`), others launched kernel by kernel.

Chunks of many tokens are read by the GPU alone, to which the processor's weights cross over layer by layer
(`engine.model.split.streamed_pass`). Between two layers such a pass may be left for other models' ticks; only
copies of weights go on meanwhile.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor

from engine.device.host_pool import HostPool
from engine.device.memory import scratch_of
from engine.device.stream import Mark, open_stream
from engine.model.split.split_decoder import SplitDecoder
from engine.runner.base import PassNotes
from engine.runner.block_copies import BlockCopies
from engine.runner.eager_runner import EagerRunner
from engine.runner.in_flight import InFlightStep
from engine.runner.input_batch import InputBatch, pack, whole_prompt
from engine.runner.piece_costs import measure_pieces
from engine.runner.sampler import Sampled, sample_rows
from engine.runner.split.captured_steps import SIZES, CapturedSteps
from engine.runner.split.long_pass import LongPass, fewest_long
from engine.runner.split.split_kv import SplitKV, split_pool_bytes
from engine.scheduler.config import SlowPasses
from engine.scheduler.plan import ModelBatch
from kernels.cuda.compile import compile_together
from kernels.select import captures_parts

_TRIED_OUT = (1, 7, 64, 120)
"""Tokens of passes whose kernels are made ready: a row, a few, chunks."""
_LEAST_READ = 16
"""Tokens of the shortest pass, tried out, that the device reads alone; others have twice as many."""
_HOST = torch.device("cpu")


class SplitRunner(BlockCopies, EagerRunner):
    """One model's decoder and its paged KV, on a GPU and beside it."""

    kv: SplitKV

    def __init__(self, decoder: SplitDecoder, pages: list[int], longest: int) -> None:
        """pages: of each pool of its KV, scratch page 0 included; longest: most prompt tokens of a pass."""
        ops, host_ops, config = decoder.ops, decoder.host_ops, decoder.config
        first = decoder.placement.layers
        self._split = decoder
        self._stream = open_stream(ops.device)
        self._pinned = ops.device.type == "cuda"
        with torch.inference_mode(), self._stream.current():
            self.kv = self._open_kv(pages)
        captured = captures_parts(ops)
        self.block_size, self.verify_rows = ops.block_size, host_ops.verify_rows
        if captured:
            # Passes that are not would lose what is gained.
            self.verify_rows = min(self.verify_rows, SIZES[-1])
        # Layers on the processor have quick passes; of experts alone a larger pass reads each once.
        self.few_tokens = host_ops.few_tokens if first else None
        sizes = split_pool_bytes(ops, host_ops, config, first)
        self.host_pools = [HostPool(sum(pair), ops.device) for pair in zip(*sizes, strict=True)]
        self.slow: SlowPasses | None = SlowPasses(longest, self.few_tokens)
        self._long_from: int | None = None
        """Tokens from which on the device reads alone."""
        self._longest = longest
        self._split.open_visits(self.kv.groups)
        self._long = LongPass(decoder, self.kv, self.block_size, self._stream)
        self._steps = CapturedSteps(decoder, self.kv, self.block_size, self._stream) if captured else None
        self._mapped = self.kv.mapped_bytes
        self._moved: Mark | None = None
        self._in_flight: deque[InFlightStep] = deque()
        self.notes = PassNotes()
        self.freed = threading.Event()

    def _open_kv(self, counts: list[int]) -> SplitKV:
        made = self._split
        return SplitKV(made.ops, made.host_ops, made.config, counts, made.placement.layers)

    @torch.inference_mode()
    def warm_up(self, progress: Callable[[float], None]) -> None:
        """Compile the device's kernels, and measure what its part of the longest pass takes.

        From how many tokens on the device reads alone is measured too.
        """
        if self._pinned:
            compile_together(self._launch_all, progress)
            self._try_out(*_TRIED_OUT)
            self._capture()
            self.scratch_bytes = scratch_of(self._split.ops.device, lambda: self._try_out(self._longest))
        measure_pieces(self._split, self._stream, self.kv.num_pools, self._open_kv)
        self._long_from = fewest_long(self._split, self.kv, self._split.ops)
        self.slow = SlowPasses(self._longest, self.few_tokens, self._long_from)

    def _launch_all(self) -> None:
        """Passes of every kind, those that the device reads alone in sizes of every kind too."""
        with self._stream.current():
            for size in (*_TRIED_OUT, self._longest):
                self._split.try_out(size, self.kv.groups)
            if self._steps is not None:
                self._steps.try_out()
            size = _LEAST_READ
            while self._split.streams and size < 2 * self._longest:
                self._split.try_out_reading(min(size, self._longest), self.kv.groups, whole=False)
                size *= 2
            self._stream.synchronize()

    def _try_out(self, *sizes: int) -> None:
        with torch.inference_mode(), self._stream.current():
            for size in sizes:
                self._split.try_out(size, self.kv.groups)
            if self._split.streams:
                self._split.try_out_reading(sizes[-1], self.kv.groups)
            self._stream.synchronize()

    def _capture(self) -> None:
        if self._steps is not None:
            with self._stream.current():
                self._steps.try_out()
                self._steps.capture()

    @torch.inference_mode()
    def run(self, batch: ModelBatch) -> Sampled:
        """Run one pass; returns an id or a cause for every sequence that reached its target."""
        try:
            with self._stream.current():
                self._back(batch)
                sampled = self._read(batch) if self._is_long(batch) else super().run(batch)
                self._stream.mark().synchronize()
                return sampled
        except Exception:
            self.forget()
            raise

    def _is_long(self, batch: ModelBatch) -> bool:
        fewest = self._long_from
        return fewest is not None and sum(chunk.length for chunk in batch.prefill) >= fewest

    def _read(self, batch: ModelBatch) -> Sampled:
        """Decode rows in a pass of their own, then as much of the chunks as the tick has time for."""
        until = time.perf_counter() + batch.slice_ms / 1e3
        sampled = Sampled({}, {})
        if batch.decode:
            sampled = self._pass(ModelBatch(batch.model, batch.decode, drafts=batch.drafts))
        sampled.update(self._long.go_on(batch, until))
        return sampled

    def _pass(self, batch: ModelBatch) -> Sampled:
        packed = pack(batch, self.block_size, _HOST)
        logits = self._launched(packed) if self._steps is None else self._replayed(self._steps, packed)
        if not packed.sampled:
            return Sampled({}, {})
        return sample_rows(logits, packed.sampled, batch.drafts)

    def _launched(self, packed: InputBatch) -> Tensor:
        layouts = self.kv.by_group(packed.layouts)
        return self._split.forward(packed.ids, layouts, self.kv.groups, packed.logit_rows)

    def _replayed(self, steps: CapturedSteps, packed: InputBatch) -> Tensor:
        return steps.run(packed, lambda: self._launched(packed))

    def _back(self, batch: ModelBatch) -> None:
        """Have memory behind every page of the batch; raises `MemoryError` when the device is full."""
        before = self._mapped
        for sequence in batch.sequences:
            for pool, pages in enumerate([sequence.block_table, *(one.pages for one in sequence.windows)]):
                self.kv.back(pool, max(pages, default=0) + 1)
        self._mapped = self.kv.mapped_bytes
        if self._mapped != before:
            self.notes.add(f"KV memory mapped: {self._mapped >> 20} MiB")

    def forget(self) -> None:
        """What a failed pass has queued is waited for: memory behind its blocks may go."""
        self._long.drop()
        with suppress(Exception):
            self._stream.synchronize()

    @torch.inference_mode()
    def logits(self, token_ids: list[int]) -> Tensor:
        """float32 [T, vocab] of a prompt by itself, in KV of its own."""
        decoder, pools = self._split, range(self.kv.num_pools)
        blocks = (len(token_ids) + self.block_size - 1) // self.block_size + 1
        with self._stream.current():
            kv = self._open_kv([blocks for _ in pools])
            try:
                for pool in pools:
                    kv.back(pool, blocks)
                packed = whole_prompt(token_ids, self.block_size, _HOST)
                layouts = kv.by_group(packed.layouts * len(pools))
                return decoder.forward(packed.ids, layouts, kv.groups, None).cpu()
            finally:
                self._stream.synchronize()
                kv.close()

    def close(self) -> None:
        """Give all memory back, behind what is queued."""
        with suppress(Exception):
            self._stream.synchronize()
        self._long.drop()
        if self._steps is not None:
            self._steps.close()
        self._split.close()
        self.kv.close()
        super().close()
