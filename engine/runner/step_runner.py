"""Runs one model's passes on a GPU one by one, and has torch choose their tokens.

For a device on which a kernel that queues passes or chooses tokens cannot be made ready.
"""

import threading
from collections import deque

import torch
from torch import Tensor

from engine.device.host_pool import HostPool
from engine.device.stream import Mark, open_stream
from engine.model.decoder import Decoder
from engine.runner.base import PassNotes
from engine.runner.block_copies import BlockCopies
from engine.runner.eager_runner import EagerRunner
from engine.runner.in_flight import InFlightStep
from engine.runner.logits.prompt_logits import prompt_logits
from engine.runner.model_kv import ModelKV, pool_bytes
from engine.runner.piece_costs import measure_pieces
from engine.runner.sampler import Sampled
from engine.scheduler.plan import ModelBatch


class StepRunner(BlockCopies, EagerRunner):
    """One model's decoder and its paged KV, whose memory grows and shrinks."""

    def __init__(self, decoder: Decoder, pages: list[int]) -> None:
        """pages: of each pool of its KV, scratch page 0 included."""
        ops = decoder.ops
        self.decoder = decoder
        self.block_size, self.verify_rows, self.few_tokens = ops.block_size, 0, ops.few_tokens
        self._stream = open_stream(ops.device)
        with torch.inference_mode(), self._stream.current():
            self.kv = ModelKV(ops, decoder.config, pages)
        self.host_pools = [HostPool(size, ops.device) for size in pool_bytes(ops, decoder.config)]
        self._mapped = self.kv.mapped_bytes
        self._moved: Mark | None = None
        self._in_flight: deque[InFlightStep] = deque()
        self.notes = PassNotes()
        self.freed = threading.Event()

    def warm_up(self, progress: object) -> None:  # noqa: ARG002
        """Find out what else torch has to compute, by one pass of a token and one of a prompt."""
        measure_pieces(self.decoder, self._stream, len(self.host_pools))

    @torch.inference_mode()
    def run(self, batch: ModelBatch) -> Sampled:
        """Run one pass; returns an id or a cause for every sequence that reached its target."""
        with self._stream.current():
            for sequence in batch.sequences:
                for pool, pages in enumerate(
                    [sequence.block_table, *(one.pages for one in sequence.windows)]
                ):
                    self.kv.back(pool, max(pages, default=0) + 1)
            self._mapped = self.kv.mapped_bytes
            sampled = super().run(batch)
            self._stream.mark().synchronize()
            return sampled

    @torch.inference_mode()
    def logits(self, token_ids: list[int]) -> Tensor:
        """float32 [T, vocab] of a prompt by itself, in KV of its own."""
        with self._stream.current():
            return prompt_logits(self.decoder, self._stream, len(self.host_pools), token_ids)

    def close(self) -> None:
        """Give all memory back, behind what is queued."""
        try:
            self._stream.synchronize()
        finally:
            self.kv.close()
            super().close()
