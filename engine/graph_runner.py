"""Runs one model's passes on a GPU: captured per shape, queued ahead of the ids that they give.

Everything a tick needs beyond its shape is on the device: block tables, lengths, last ids and
sampling state of every row (`kernels.pass_tables`). A tick of decode rows is one graph replay and
one small copy to pinned memory; the host learns the ids when the copy's event has passed.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.batch import whole_prompt
from engine.captured_pass import FIRST_SIZES, WARM_SIZES, CapturedPass, PassSize, captured_size, exact_size
from engine.compile_thread import CompileThread
from engine.device_queue import Mark, open_queue
from engine.device_rows import DeviceRows
from engine.host_blocks import host_blocks, load, save
from engine.model.decoder import Decoder
from engine.sampler import Sampled, not_finite_cause
from engine.scheduler import ModelBatch
from engine.sequence import Sequence
from kernels.pass_tables import LENGTH, NOT_FINITE, DecodeState, PassBuffers, advance, fill_pass
from kernels.sampler_gpu import sample
from kernels.sampler_state import SamplerState
from kernels.triton_ops import TritonOperations

MAX_ROWS = 64
DEPTH = 32
"""Ticks whose ids the device keeps; more are never in flight."""
AHEAD_MS = 12.0
"""Device time that is queued: longer than most frames of the UI take, too short to feel at a join."""
_END_IDS = 16
_SMOOTHING = 0.2
_KEPT_BLOCKS = 64
"""KV blocks that stay backed beyond the need: giving memory back and taking it again costs ticks."""


@dataclass(slots=True)
class _Flight:
    """A launched tick: who its sampled rows are, in order."""

    sequences: list[tuple[int, Sequence]]
    tick: int
    done: Mark


class GraphRunner:
    """One model's decoder, paged KV and decode state on one GPU."""

    def __init__(
        self, decoder: Decoder, num_blocks: int, context_length: int, end_ids: Iterable[int]
    ) -> None:
        ops, config = decoder.ops, decoder.config
        assert isinstance(ops, TritonOperations)
        self.decoder = decoder
        self.block_size = ops.block_size
        self._max_blocks = -(-context_length // self.block_size)
        self._end_ids = sorted(end_ids)[:_END_IDS]
        self._ops = ops
        self._queue = open_queue(ops.device)
        with torch.inference_mode(), self._queue.current():
            self.kv = ops.make_kv(config.num_layers, num_blocks, config.num_kv_heads, config.head_dim)
            self._state, self._sampler = self._make_state()
        self.host_blocks = host_blocks(ops, config)
        self._moved: Mark | None = None
        """The last copy between device and host blocks."""
        self._rows = DeviceRows(self._state, self._sampler, self.kv)
        self._reports = self._queue.host_tensor(DEPTH, MAX_ROWS)
        self._passes: dict[PassSize, CapturedPass] = {}
        self._flights: deque[_Flight] = deque()
        self._current: CapturedPass | None = None
        self._ticks = 0
        self._compiler = CompileThread(self._free)
        self.freed = self._compiler.freed
        self.replays = 0
        """Passes that were one replay of a captured graph."""
        self.eager_passes = 0
        """Passes whose kernels were launched one by one."""
        self._tick_ms = AHEAD_MS / 4
        self._collected_at = 0.0

    @property
    def max_ahead(self) -> int:
        """As many ticks as `AHEAD_MS` holds."""
        return min(DEPTH - 2, max(1, math.ceil(AHEAD_MS / self._tick_ms)))

    @torch.inference_mode()
    def warm_up(self, progress: Callable[[float], None]) -> None:
        """Make ready what a first answer needs; a thread compiles what later ones will."""
        with self._queue.current():
            for index, size in enumerate(FIRST_SIZES):
                progress(index / len(FIRST_SIZES))
                self._captured(size)
            self._queue.synchronize()
        self._compiler.start(self._compile_rest())

    @torch.inference_mode()
    def _compile_rest(self) -> Generator[None, None, None]:
        """Run every other shape once on padding, in a state and a queue of its own, one a step."""
        queue = open_queue(self._ops.device)
        with queue.current():
            spare = self._make_state()
        try:
            for size in WARM_SIZES:
                with queue.current():
                    CapturedPass(spare[0], size, queue).launch(lambda buffers: self._compute(buffers, *spare))
                queue.synchronize()
                yield
        finally:
            queue.synchronize()

    @torch.inference_mode()
    def run(self, batch: ModelBatch) -> Sampled:
        """Run one pass; returns an id or a cause for every sequence that reached its target."""
        try:
            with self._queue.current():
                slots = self._rows.place(batch.sequences)
                if batch.copies:
                    self._ops.copy_blocks(self.kv, batch.copies)
                size = captured_size(batch)
                one = (
                    CapturedPass(self._state, exact_size(batch), self._queue)
                    if size is None
                    else self._captured(size)
                )
                one.fill(batch, slots)
                self._launch(one, batch)
                return self._read(self._flights.popleft())
        except Exception:
            self._forget()
            raise

    @torch.inference_mode()
    def begin(self, batch: ModelBatch) -> None:
        """Bring decode rows onto the device, to be run by `launch`."""
        self._flights.clear()
        with self._queue.current():
            size = captured_size(batch)
            if size is None:
                raise RuntimeError(f"{len(batch.decode)} rows are more than {MAX_ROWS}")
            self._current = self._captured(size)
            self._current.fill(batch, self._rows.place(batch.decode))

    @torch.inference_mode()
    def launch(self, batch: ModelBatch) -> None:
        """Queue one more tick of the rows; takes note of blocks they have got."""
        assert self._current is not None
        with self._queue.current():
            self._rows.send_blocks(batch.decode)
            self._launch(self._current, batch)

    def collect(self) -> Sampled:
        """Wait for the oldest tick launched and not yet collected; a row that has ended has no id."""
        behind = len(self._flights) > 1
        try:
            sampled = self._read(self._flights.popleft())
        except Exception:
            self._forget()
            raise
        now = time.perf_counter()
        if behind and self._collected_at:
            self._tick_ms += _SMOOTHING * ((now - self._collected_at) * 1e3 - self._tick_ms)
        self._collected_at = now if behind else 0.0
        return sampled

    @torch.inference_mode()
    def logits(self, token_ids: list[int]) -> Tensor:
        """float32 [T, vocab] of a prompt by itself, in KV of its own."""
        config, ops = self.decoder.config, self._ops
        blocks = (len(token_ids) + self.block_size - 1) // self.block_size + 1
        with self._queue.current():
            kv = ops.make_kv(config.num_layers, blocks, config.num_kv_heads, config.head_dim)
            kv.back(blocks)
            packed = whole_prompt(token_ids, self.block_size, ops.device)
            try:
                return self.decoder.forward(packed.ids, packed.layout, kv, None).cpu()
            finally:
                self._queue.synchronize()
                kv.close()

    @property
    def compiling(self) -> bool:
        """Whether kernels of later passes are still being compiled."""
        return self._compiler.running

    @property
    def kv_bytes(self) -> int:
        """Memory that the paged KV holds now."""
        return self.kv.mapped_bytes

    def trim_kv(self, blocks: int) -> None:
        """Give back KV memory behind the first `blocks` blocks, unless it is little or in use."""
        if self._flights or (self._moved is not None and not self._moved.query()):
            return
        if self.kv.backed_blocks > blocks + blocks // 4 + _KEPT_BLOCKS:
            self.kv.trim(blocks + _KEPT_BLOCKS)

    @torch.inference_mode()
    def save_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Queue copies of KV blocks to pinned host slots, behind the passes launched so far."""
        with self._queue.current():
            save(self._ops, self.kv, self.host_blocks, pairs)
            self._moved = self._queue.mark()

    @torch.inference_mode()
    def load_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Queue copies of host slots to KV blocks, ahead of the passes launched from now on.

        Raises `MemoryError` when the device has no memory for them; nothing was copied then.
        """
        self.kv.back(max((block + 1 for block, _ in pairs), default=0))
        with self._queue.current():
            load(self._ops, self.kv, self.host_blocks, pairs)
            self._moved = self._queue.mark()

    def close(self) -> None:
        """Give all memory back; the thread that still compiles does so at its end."""
        self._compiler.close()

    def _free(self) -> None:
        try:
            self._queue.synchronize()
        finally:
            self._flights.clear()
            self._current = None
            self._passes.clear()
            self.kv.close()
            self.host_blocks.close()

    def _make_state(self) -> tuple[DecodeState, SamplerState]:
        device = self._ops.device
        state = DecodeState.create(MAX_ROWS, self._max_blocks, self.block_size, self._end_ids, DEPTH, device)
        return state, SamplerState.create(MAX_ROWS, self.decoder.config.vocab_size, device)

    def _tick(self, buffers: PassBuffers) -> None:
        self._compute(buffers, self._state, self._sampler)

    def _compute(self, buffers: PassBuffers, state: DecodeState, sampler: SamplerState) -> None:
        """The whole tick: tables, model, sampling, and the rows one token further."""
        weights = self.decoder.weights
        fill_pass(state, buffers)
        prepared = self._ops.prepare_tables(buffers.tables, self.kv, weights.inv_freq, weights.rope_magnitude)
        logits = self.decoder.run(buffers.ids, prepared, buffers.logit_rows)
        lengths = state.rows[:, LENGTH.value]
        ids, finite = sample(logits, sampler, buffers.sampled_slots, lengths)
        advance(state, buffers.sampled_slots, ids, finite, sampler)

    def _captured(self, size: PassSize) -> CapturedPass:
        made = self._passes.get(size)
        if made is None:
            made = CapturedPass(self._state, size, self._queue)
            made.launch(self._tick)
            self._ticks += 1
            made.capture(self._tick)
            self._passes[size] = made
        return made

    def _launch(self, one: CapturedPass, batch: ModelBatch) -> None:
        one.launch(self._tick)
        self.replays += one.captured
        self.eager_passes += not one.captured
        tick = self._ticks
        self._ticks += 1
        place = tick % DEPTH
        self._reports[place].copy_(self._state.ring[place], non_blocking=True)
        sampled = list(enumerate(batch.decode))
        first = one.size.num_decode
        sampled += [
            (first + index, chunk.sequence) for index, chunk in enumerate(batch.prefill) if chunk.completes
        ]
        self._flights.append(_Flight(sampled, tick, self._queue.mark()))

    def _read(self, flight: _Flight) -> Sampled:
        flight.done.synchronize()
        reports = self._reports[flight.tick % DEPTH].tolist()
        result = Sampled({}, {})
        for row, sequence in flight.sequences:
            report = reports[row]
            if report >= 0:
                result.ids[sequence.sequence_id] = report
                self._rows.reported(sequence)
            elif report == NOT_FINITE:
                result.failed[sequence.sequence_id] = not_finite_cause(sequence.request.sampling)
        return result

    def _forget(self) -> None:
        """Start from known state: what was in flight is not read any more."""
        with suppress(Exception):
            # Blocks of a failed step are given away, and memory behind them may be unmapped.
            self._queue.synchronize()
        self._flights.clear()
        self._rows.forget()
