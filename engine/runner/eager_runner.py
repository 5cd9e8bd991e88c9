"""Runs planned batches of one model: pack, forward, sample."""

import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.core.tick_log import PassNotes
from engine.device.host_pool import HostBlocks, host_blocks, load, save
from engine.model.decoder import Decoder
from engine.runner.input_batch import pack, whole_prompt
from engine.runner.sampler import Sampled, sample_rows
from engine.scheduler.scheduler import ModelBatch
from engine.scheduler.sequence import Sequence


class Runner(Protocol):
    """Runs one model's passes; `ahead` and what follows it are for devices that queue work."""

    block_size: int
    host_blocks: HostBlocks
    """Slots for blocks whose KV waits in host memory; none before they are asked for."""
    notes: PassNotes
    """What its passes did that not every pass does."""
    freed: threading.Event
    """Set once a closed runner's memory is given back."""

    @property
    def verify_rows(self) -> int:
        """Most tokens of a pass of decode rows with guesses behind them; 0: it verifies none."""
        ...

    def can_verify(self, sequence: Sequence, /) -> bool:
        """Whether guesses may stand behind a sequence's decode row."""
        ...

    @property
    def max_ahead(self) -> int:
        """Ticks of decode rows that may be launched before the first one's ids are read; 0: none."""
        ...

    def run(self, batch: ModelBatch) -> Sampled:
        """Run one pass; returns an id or a cause for every sequence that reached its target."""
        ...

    def logits(self, token_ids: list[int]) -> Tensor:
        """float32 [T, vocab] of a prompt by itself, in KV of its own."""
        ...

    def warm_up(self, progress: Callable[[float], None]) -> None:
        """Do now what the first passes would wait for; progress: called with the part done."""
        ...

    @property
    def compiling(self) -> bool:
        """Whether later passes are still being made ready."""
        ...

    def idle_work(self) -> bool:
        """Do a piece of what later passes would wait for; returns whether more follows."""
        ...

    @property
    def kv_bytes(self) -> int:
        """Memory that the paged KV holds now, where it grows and shrinks; else 0."""
        ...

    def trim_kv(self, blocks: int) -> None:
        """Give back KV memory behind the first `blocks` blocks."""
        ...

    def save_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Queue copies of KV blocks to host memory: pairs of (block, host slot below the capacity).

        In order with passes: later ones may write to the blocks, and `load_blocks` finds the copies.
        """
        ...

    def load_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Queue copies back: pairs of (block, host slot); later passes find them in place.

        Raises `MemoryError` when a GPU has no memory for the blocks; nothing was copied then.
        """
        ...

    def close(self) -> None:
        """Give memory back that does not go with the object: at once, or when what uses it has ended."""
        ...

    def begin(self, batch: ModelBatch) -> None:
        """Bring decode rows onto the device, to be run by `launch`."""
        ...

    def launch(self, batch: ModelBatch) -> None:
        """Queue one more tick of the rows, without waiting; takes note of blocks they have got."""
        ...

    def collect(self) -> Sampled:
        """Wait for the oldest tick launched and not yet collected; a row that has ended has no id."""
        ...

    def forget(self) -> None:
        """After a failure: drop what was launched, and trust nothing that the device knows of rows."""
        ...


class ModelRunner:
    """One model's decoder and its paged KV, a pass at a time: what a CPU runs."""

    max_ahead = 0
    kv_bytes = 0
    compiling = False

    def __init__(self, decoder: Decoder, num_blocks: int) -> None:
        self.decoder = decoder
        self.block_size = decoder.ops.block_size
        self.verify_rows = decoder.ops.verify_rows
        config = decoder.config
        self.kv: Any = decoder.ops.make_kv(
            config.num_layers, num_blocks, config.num_kv_heads, config.head_dim
        )
        self.host_blocks = host_blocks(decoder.ops, config)
        self.notes = PassNotes()
        self.freed = threading.Event()

    @torch.inference_mode()
    def run(self, batch: ModelBatch) -> Sampled:
        """Run one pass; returns an id or a cause for every sequence that reached its target."""
        few = self.decoder.ops.few_tokens
        if few is None or not batch.decode or not batch.prefill or batch.num_tokens <= few:
            return self._pass(batch)
        result = self._pass(ModelBatch(batch.model, batch.decode, drafts=batch.drafts))
        result.update(self._pass(ModelBatch(batch.model, prefill=batch.prefill)))
        return result

    def _pass(self, batch: ModelBatch) -> Sampled:
        ops = self.decoder.ops
        packed = pack(batch, self.block_size, ops.device)
        logits = self.decoder.forward(packed.ids, packed.layout, self.kv, packed.logit_rows)
        if not packed.sampled:
            return Sampled({}, {})
        return sample_rows(logits, packed.sampled, batch.drafts)

    def can_verify(self, _sequence: Sequence) -> bool:
        """All: edits of logits follow the guesses."""
        return True

    def warm_up(self, progress: Callable[[float], None]) -> None:
        """Nothing: torch has its kernels."""

    def idle_work(self) -> bool:
        """Nothing."""
        return False

    def trim_kv(self, blocks: int) -> None:
        """Nothing: untouched pages take no memory."""

    @torch.inference_mode()
    def save_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy KV blocks to host slots."""
        save(self.decoder.ops, self.kv, self.host_blocks, pairs)

    @torch.inference_mode()
    def load_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy host slots to KV blocks."""
        load(self.decoder.ops, self.kv, self.host_blocks, pairs)

    def close(self) -> None:
        """Give host memory back; all else goes with the object."""
        self.host_blocks.close()
        self.freed.set()

    def forget(self) -> None:
        """Nothing: a pass begins with what the host knows."""

    def begin(self, batch: ModelBatch) -> None:
        """Nothing: passes are run one by one."""
        raise NotImplementedError("this runner computes no tick ahead")

    def launch(self, batch: ModelBatch) -> None:
        """Nothing: passes are run one by one."""
        raise NotImplementedError("this runner computes no tick ahead")

    def collect(self) -> Sampled:
        """Nothing: passes are run one by one."""
        raise NotImplementedError("this runner computes no tick ahead")

    @torch.inference_mode()
    def logits(self, token_ids: list[int]) -> Tensor:
        """float32 [T, vocab] of a prompt by itself, in KV of its own."""
        config, ops = self.decoder.config, self.decoder.ops
        blocks = (len(token_ids) + self.block_size - 1) // self.block_size + 1
        kv = ops.make_kv(config.num_layers, blocks, config.num_kv_heads, config.head_dim)
        packed = whole_prompt(token_ids, self.block_size, ops.device)
        return self.decoder.forward(packed.ids, packed.layout, kv, None).cpu()
