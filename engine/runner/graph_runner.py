"""Runs one model's passes on a GPU: captured per shape, queued ahead of the ids that they give.

Everything a tick needs beyond its shape is on the device (`kernels.state.decode_state`). A tick of decode
rows is one graph replay, which also writes its ids to pinned memory; the host reads them when that is done.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress

import torch
from torch import Tensor

from engine.device.free_memory import free_host_bytes
from engine.device.host_pool import HostPool
from engine.device.memory import scratch_of
from engine.device.stream import Mark, open_stream
from engine.device.weight_memory import WeightMemory
from engine.model.decoder import Decoder
from engine.runner.apart import ApartPass, Computed, choose
from engine.runner.base import PassNotes
from engine.runner.block_copies import BlockCopies
from engine.runner.capture_policy import CapturePolicy
from engine.runner.cuda_graph import (
    BESIDE,
    FIRST_SIZES,
    VERIFY_SIZES,
    WARM_SIZES,
    CUDAGraphPass,
    PassSize,
    captured_size,
    loose_size,
)
from engine.runner.in_flight import InFlightStep, read_report, sampled_rows
from engine.runner.logits.edits import edits_logits
from engine.runner.logits.prompt_logits import prompt_logits
from engine.runner.model_kv import ModelKV, pool_bytes
from engine.runner.persistent_batch import PersistentBatch
from engine.runner.piece_costs import measure_pieces
from engine.runner.sampler import Sampled
from engine.runner.warmup import CompileThread
from engine.scheduler.buckets import CHUNKS, MIXED_ROWS
from engine.scheduler.config import SlowPasses
from engine.scheduler.plan import ModelBatch
from engine.scheduler.sequence import Sequence
from kernels.cuda.compile import compile_together
from kernels.state.decode_state import DecodeState, PassBuffers, fill_pass
from kernels.state.draft_rows import set_draft_rows
from kernels.state.sampler_state import SamplerState
from kernels.triton_operations import TritonOperations

log = logging.getLogger(__name__)

MAX_ROWS = 64
DEPTH = 32
"""Ticks whose ids the device keeps; more are never in flight."""
AHEAD_MS = 12.0
"""Device time that is queued: longer than most frames of the UI, too short to feel at a join."""
_END_IDS = 16
_SMOOTHING = 0.2


class GraphRunner(BlockCopies):
    """One model's decoder, paged KV and decode state on one GPU.

    A captured pass has one token of each decode row; draft tokens are decode rows of their own.
    """

    slow: SlowPasses | None = None

    def __init__(
        self,
        decoder: Decoder,
        pages: list[int],
        context_length: int,
        end_ids: Iterable[int],
        longest: int = 0,
        weights: WeightMemory | None = None,
    ) -> None:
        """pages: of each pool of its KV, scratch page 0 included; weights: where the decoder's are.

        longest: most prompt tokens of a pass, 0 where they are not known.
        """
        ops = decoder.ops
        assert isinstance(ops, TritonOperations)
        self.decoder = decoder
        self.block_size = ops.block_size
        self._max_blocks = -(-context_length // self.block_size)
        self._end_ids = sorted(end_ids)[:_END_IDS]
        rows = MIXED_ROWS[-1]
        measured = longest and ops.device.type == "cuda"
        self._longest = [PassSize(rows, CHUNKS[0], rows + longest)] if measured else []
        self.scratch_bytes = 0
        self._ops, self.weights = ops, weights
        self._stream = open_stream(ops.device)
        with torch.inference_mode(), self._stream.current():
            self.kv = ModelKV(decoder.ops, decoder.config, pages)
            try:
                self._state, self._sampler = self._make_state(MAX_ROWS)
            except BaseException:
                self.kv.close()
                raise
        self.host_pools = [HostPool(size, ops.device) for size in pool_bytes(ops, decoder.config)]
        self._mapped = self.kv.mapped_bytes
        self._moved = None
        self._rows = PersistentBatch(self._state, self._sampler, self.kv)
        self._passes: dict[tuple[PassSize, bool], CUDAGraphPass] = {}
        """By shape, and whether tokens are chosen apart."""
        self._compiled: set[PassSize] = set()
        """What the compiling thread has run, and what failed to be captured ahead is not in."""
        self._capture_policy = CapturePolicy()
        self.notes = PassNotes()
        self._in_flight: deque[InFlightStep] = deque()
        self._current: CUDAGraphPass | None = None
        self._computed: Computed | None = None
        """The pass whose tokens are to be chosen apart, the last one launched."""
        self._ticks = 0
        self._compiler = CompileThread(self._free, ops.device)
        self.freed = self._compiler.freed
        self.replays = self.eager_passes = 0
        """Passes that were one replay of a captured graph, and those launched kernel by kernel."""
        self._tick_ms = AHEAD_MS / 4
        self._collected_at = 0.0

    @property
    def max_ahead(self) -> int:
        """As many ticks as `AHEAD_MS` holds."""
        return min(DEPTH - 2, max(1, int(AHEAD_MS / self._tick_ms)))

    @property
    def verify_rows(self) -> int:
        """Most tokens of a pass with drafts: of those captured, others would lose what is gained."""
        made = map(self._passes.get, ((size, False) for size in VERIFY_SIZES))
        return max((one.size.num_tokens for one in made if one is not None and one.captured), default=0)

    def can_verify(self, sequence: Sequence) -> bool:
        """Not where logits are edited: a draft token's row lacks the counts of the draft tokens before it."""
        return not (edits_logits(sequence.request.sampling) or sequence.chosen_apart)

    def warm_up(self, progress: Callable[[float], None]) -> None:
        """Make ready what a first answer and a prompt beside it need; a thread compiles the rest."""
        compile_together(self._launch_first, progress)
        with torch.inference_mode(), self._stream.current():
            for size in FIRST_SIZES:
                self._pass(size)
            self._stream.synchronize()
        self.scratch_bytes = scratch_of(self._ops.device, lambda: deque(self._try_out(self._longest), 0))
        measure_pieces(self.decoder, self._stream, len(self.host_pools))
        self._compiler.start(self._try_out(WARM_SIZES))

    def _launch_first(self) -> None:
        deque(self._try_out([*FIRST_SIZES, BESIDE, *self._longest]), 0)

    @torch.inference_mode()
    def _try_out(self, sizes: Iterable[PassSize]) -> Generator[None, None, None]:
        """Run shapes once on padding, in a state and a stream of their own, one a step."""
        stream = open_stream(self._ops.device)
        with stream.current():
            state, sampler = self._make_state(1)
        try:
            for size in sizes:
                with stream.current():
                    one = CUDAGraphPass(state, size, stream)
                    one.launch(lambda buffers: self._compute(buffers, state, sampler))
                stream.synchronize()
                self._compiled.add(size)
                yield
        finally:
            stream.synchronize()

    @torch.inference_mode()
    def run(self, batch: ModelBatch) -> Sampled:
        """Run one pass; returns an id or a cause for every sequence that reached its target."""
        try:
            with self._stream.current():
                slots = self._rows.place(batch.sequences, batch.drafts)
                size = captured_size(batch)
                one = (
                    self._pass(size, batch.chosen_apart, hurry=bool(batch.decode))
                    if size is not None
                    else self._new_pass(loose_size(batch), batch.chosen_apart)
                )
                ready = one.has_run or one.size in self._compiled
                one.fill(batch, slots)
                started = time.perf_counter()
                self._launch(one, batch)
                launched = time.perf_counter()
                self._choose()
                sampled = self._read(self._in_flight.popleft())
                if ready and not one.captured:
                    took, whole = launched - started, time.perf_counter() - started
                    self._capture_policy.launched(one.size, took * 1e3, whole * 1e3)
                return sampled
        except Exception:
            self.forget()
            raise

    @torch.inference_mode()
    def begin(self, batch: ModelBatch) -> None:
        """Bring decode rows onto the device, to be run by `launch`."""
        self._in_flight.clear()
        self._computed = None
        with self._stream.current():
            size = captured_size(batch)
            if size is None:
                raise RuntimeError(f"{len(batch.decode)} rows are more than {MAX_ROWS}")
            self._current = self._pass(size, batch.chosen_apart)
            self._current.fill(batch, self._rows.place(batch.decode))

    @torch.inference_mode()
    def launch(self, batch: ModelBatch) -> None:
        """Queue one more tick of the rows; takes note of blocks they have got."""
        assert self._current is not None
        with self._stream.current():
            self._choose()
            self._rows.send_blocks(batch.decode)
            self._launch(self._current, batch)

    @torch.inference_mode()
    def idle_work(self) -> bool:
        """Capture one more shape whose kernels are compiled; returns whether there will be more to do."""
        missing = None if self._compiler.running else next(filter(self._is_missing, WARM_SIZES), None)
        if missing is not None:
            try:
                with self._stream.current():
                    # On padding: the first replay of a graph takes several times as long as the next.
                    self._pass(missing).launch(self._tick)
                    self._ticks += 1
                    self._stream.synchronize()
            except Exception:
                log.exception("capturing a pass ahead of its use failed")
                self._compiled.discard(missing)
                self.forget()
            # What was done between ticks has made none of them longer.
            self.notes.take()
        return self.compiling

    def _is_missing(self, size: PassSize) -> bool:
        """Whether a shape is compiled and could be captured, but is not."""
        made, can = self._passes.get((size, False)), self._ops.captures(prompts=size.shares_kv)
        return can and size.captured and size in self._compiled and (made is None or not made.captured)

    @torch.inference_mode()
    def collect(self) -> Sampled:
        """Wait for the oldest tick launched and not yet collected; a row that has ended has no id."""
        behind = len(self._in_flight) > 1
        try:
            if not self._in_flight:
                self._choose()
            sampled = self._read(self._in_flight.popleft())
        except Exception:
            self.forget()
            raise
        now = time.perf_counter()
        if behind and self._collected_at:
            self._tick_ms += _SMOOTHING * ((now - self._collected_at) * 1e3 - self._tick_ms)
        self._collected_at = now if behind else 0.0
        return sampled

    def forget(self) -> None:
        """Start from known state: what was in flight is not read any more."""
        with suppress(Exception):
            # Blocks of a failed step are given away, and memory behind them may be unmapped.
            self._stream.synchronize()
        self._in_flight.clear()
        self._computed = None
        self._rows.forget()

    @torch.inference_mode()
    def logits(self, token_ids: list[int]) -> Tensor:
        """float32 [T, vocab] of a prompt by itself, in KV of its own."""
        with self._stream.current():
            return prompt_logits(self.decoder, self._stream, len(self.host_pools), token_ids)

    @property
    def compiling(self) -> bool:
        """Whether later passes are still being made ready: by a thread, or when nothing runs."""
        return self._compiler.running or any(map(self._is_missing, WARM_SIZES))

    def rest(self) -> bool:
        """Weights wait in host memory; graphs and kernels stay, since addresses do."""
        self._compiler.pause()
        self.forget()
        rests = self.weights is not None and self.weights.rest()
        (self.kv.empty if rests else self._compiler.resume)()
        return rests

    def wake(self) -> None:
        """As `rest` left it, with empty KV."""
        assert self.weights is not None
        self.weights.wake(keep_copy=free_host_bytes() > 2 * self.weights.used_bytes)
        self._compiler.resume()

    def close(self) -> None:
        """Give all memory back; the thread that still compiles does so at its end."""
        self._compiler.close()

    def _free(self) -> None:
        try:
            self._stream.synchronize()
        finally:
            self._in_flight.clear()
            self._current = self._computed = None
            self._passes.clear()
            for held in (self.kv, self.weights, *self.host_pools):
                if held is not None:
                    held.close()

    def _make_state(self, sampler_rows: int) -> tuple[DecodeState, SamplerState]:
        """sampler_rows: 1 is enough for padding, and tens of megabytes less."""
        device = self._ops.device
        drafts = VERIFY_SIZES[-1].num_tokens
        blocks = self._max_blocks, self.block_size
        pools = self.kv.num_pools
        state = DecodeState.create(MAX_ROWS, *blocks, self._end_ids, DEPTH, device, drafts, pools)
        return state, SamplerState.create(sampler_rows, self.decoder.config.vocab_size, device, drafts)

    def _tick(self, buffers: PassBuffers) -> None:
        self._compute(buffers, self._state, self._sampler)

    def _until_logits(self, buffers: PassBuffers) -> Tensor:
        return self._logits(buffers, self._state, self._sampler)

    def _compute(self, buffers: PassBuffers, state: DecodeState, sampler: SamplerState) -> None:
        """The whole tick: tables, model, sampling, and the rows one token further."""
        choose(self._logits(buffers, state, sampler), state, sampler, buffers.sampled_slots)

    def _logits(self, buffers: PassBuffers, state: DecodeState, sampler: SamplerState) -> Tensor:
        decoder = self.decoder
        set_draft_rows(state, sampler, buffers)
        fill_pass(state, buffers)
        tables = self.kv.by_group(buffers.pools)
        prepared = self._ops.prepare_tables(tables, self.kv.groups, decoder.rotations)
        return decoder.run(buffers.ids, prepared, buffers.logit_rows)

    def _pass(self, size: PassSize, apart: bool = False, *, hurry: bool = False) -> CUDAGraphPass:
        """The pass of a shape, captured if it can be, unless rows wait (`hurry`) and it is better not now."""
        made = self._passes.get((size, apart))
        if made is None:
            made = self._passes[size, apart] = self._new_pass(size, apart)
        if not made.captured and not (hurry and not self._capture_policy.capture_now(size)):
            self._capture(made, apart)
        return made

    def _new_pass(self, size: PassSize, apart: bool) -> CUDAGraphPass:
        parts = self._state, size, self._stream
        return ApartPass(*parts, self._sampler) if apart else CUDAGraphPass(*parts)

    def _capture(self, made: CUDAGraphPass, apart: bool) -> None:
        compute = self._until_logits if apart else self._tick
        if not made.has_run:
            made.launch(compute)
            self._ticks += not apart
        if not self._ops.captures(prompts=made.size.shares_kv):
            return
        started = time.perf_counter()
        made.capture(compute)
        self._capture_policy.captured(made.size, (time.perf_counter() - started) * 1e3)
        self.notes.add(f"capture {made.size.counts}")

    def _launch(self, one: CUDAGraphPass, batch: ModelBatch) -> None:
        self.notes.shape = one.size.counts
        if not one.captured:
            new = one.size.captured and not one.has_run and one.size not in self._compiled
            self.notes.add("first run" if new else "kernel by kernel")
        if self.kv.mapped_bytes != self._mapped:
            self._mapped = self.kv.mapped_bytes
            self.notes.add(f"KV memory mapped: {self._mapped >> 20} MiB")
        self.replays += one.captured
        self.eager_passes += not one.captured
        if isinstance(one, ApartPass):
            self._computed = one.compute(batch, self._until_logits)
        else:
            one.launch(self._tick)
            self._in_flight.append(InFlightStep(sampled_rows(batch, one.size), *self._report()))

    def _choose(self) -> None:
        """Choose the tokens of the pass that was launched without, if there is one."""
        computed, self._computed = self._computed, None
        if computed is not None:
            with self._stream.current():
                chosen = computed.choose()
                self._in_flight.append(InFlightStep(chosen.rows, *self._report(), chosen))

    def _report(self) -> tuple[int, Mark]:
        """The number of the tick just queued, and when what it gives is in the ring."""
        tick = self._ticks
        self._ticks += 1
        return tick, self._stream.mark()

    def _read(self, step: InFlightStep) -> Sampled:
        step.done.synchronize()
        result, followed = read_report(step, self._state.ring[step.tick % DEPTH].tolist())
        for sequence in followed:
            self._rows.reported(sequence)
        return result
