"""Runs planned batches of one model: pack, forward, sample."""

import logging
import threading
from collections.abc import Callable, Generator

import torch
from torch import Tensor

from engine.cache.block_manager import KVMove
from engine.device.host_pool import HostPool
from engine.device.stream import DONE, Mark
from engine.device.weight_memory import WeightMemory
from engine.model.decoder import Decoder
from engine.runner.base import PassNotes
from engine.runner.input_batch import pack, whole_prompt
from engine.runner.model_kv import ModelKV, pool_bytes
from engine.runner.recorded.passes import RecordedPasses
from engine.runner.recorded.rehearsal import rehearsal
from engine.runner.sampler import Sampled, sample_rows
from engine.scheduler.config import SlowPasses
from engine.scheduler.plan import ModelBatch
from engine.scheduler.sequence import Sequence

log = logging.getLogger(__name__)


class EagerRunner:
    """One model's decoder and its paged KV, a pass at a time: what a CPU runs."""

    max_ahead = 0
    scratch_bytes = 0
    weights: WeightMemory | None = None
    slow: SlowPasses | None = None
    recorded: RecordedPasses | None = None
    _rehearsal: Generator[None, None, None] | None = None

    def __init__(self, decoder: Decoder, pages: list[int]) -> None:
        """pages: of each pool of its KV, scratch page 0 included."""
        self.decoder = decoder
        self.block_size = decoder.ops.block_size
        self.verify_rows = decoder.ops.verify_rows
        self.few_tokens = decoder.ops.few_tokens
        self.kv = ModelKV(decoder.ops, decoder.config, pages)
        host = torch.device("cpu")
        self.host_pools = [HostPool(size, host) for size in pool_bytes(decoder.ops, decoder.config)]
        self.recorded = RecordedPasses(decoder)
        self.notes = PassNotes()
        self._rehearsal = rehearsal(self.recorded, decoder, self.kv, self.notes)
        self.freed = threading.Event()

    @property
    def kv_bytes(self) -> int:
        """None that grows and shrinks."""
        return 0

    @torch.inference_mode()
    def run(self, batch: ModelBatch) -> Sampled:
        """Run one pass; returns an id or a cause for every sequence that reached its target."""
        few = self.few_tokens
        if few is None or not batch.decode or not batch.prefill or batch.num_tokens <= few:
            return self._pass(batch)
        result = self._pass(ModelBatch(batch.model, batch.decode, drafts=batch.drafts))
        result.update(self._pass(ModelBatch(batch.model, prefill=batch.prefill)))
        return result

    def _pass(self, batch: ModelBatch) -> Sampled:
        ops = self.decoder.ops
        packed = pack(batch, self.block_size, ops.device)
        layouts = self.kv.by_group(packed.layouts)
        logits = None if self.recorded is None else self.recorded.logits(packed, layouts, self.kv.groups)
        if logits is None:
            logits = self.decoder.forward(packed.ids, layouts, self.kv.groups, packed.logit_rows)
        if not packed.sampled:
            return Sampled({}, {})
        sampled = sample_rows(logits, packed.sampled, batch.drafts)
        if self.recorded is not None and not self.recorded.timed:
            self.notes.add("first run")
            sampled.timed = False
        return sampled

    def can_verify(self, sequence: Sequence) -> bool:
        """Not where each token decides on the next one's choice; edits of logits follow the drafts."""
        return not sequence.chosen_apart

    def warm_up(self, progress: Callable[[float], None]) -> None:
        """Nothing: torch has its kernels."""

    @property
    def compiling(self) -> bool:
        """Whether passes are left to rehearse."""
        return self._rehearsal is not None

    @torch.inference_mode()
    def idle_work(self) -> bool:
        """Rehearse some passes; returns whether more are left."""
        if self._rehearsal is not None:
            try:
                next(self._rehearsal)
            except StopIteration:
                self._rehearsal = None
            except Exception:
                log.exception("rehearsing passes failed")
                self._rehearsal = None
        return self.compiling

    def trim_kv(self, highest: list[int]) -> None:
        """Nothing: untouched pages take no memory."""

    @torch.inference_mode()
    def offload_blocks(self, moves: list[KVMove]) -> None:
        """Copy KV blocks to host slots."""
        self.kv.offload(self.host_pools, moves)

    @torch.inference_mode()
    def reload_blocks(self, moves: list[KVMove]) -> None:
        """Copy host slots to KV blocks."""
        self.kv.reload(self.host_pools, moves)

    @torch.inference_mode()
    def save_blocks(self, hosts: list[HostPool], moves: list[KVMove]) -> Mark:
        """Copy KV blocks to slots of other pools."""
        self.kv.offload(hosts, moves)
        return DONE

    @torch.inference_mode()
    def restore_blocks(self, hosts: list[HostPool], moves: list[KVMove]) -> Mark:
        """Copy slots of other pools to KV blocks."""
        self.kv.reload(hosts, moves)
        return DONE

    def rest(self) -> bool:
        """Never: weights are in host memory as it is."""
        return False

    def wake(self) -> None:
        """Nothing: it never rests."""

    def close(self) -> None:
        """Give host memory back; all else goes with the object."""
        self._rehearsal = None
        for pool in self.host_pools:
            pool.close()
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
        blocks = (len(token_ids) + self.block_size - 1) // self.block_size + 1
        kv = ModelKV(self.decoder.ops, self.decoder.config, [blocks] * len(self.host_pools))
        packed = whole_prompt(token_ids, self.block_size, self.decoder.ops.device)
        layouts = packed.layouts * len(self.host_pools)
        return self.decoder.forward(packed.ids, kv.by_group(layouts), kv.groups, None).cpu()
