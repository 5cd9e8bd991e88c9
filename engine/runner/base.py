"""What the engine's thread asks of a runner: one model's passes on one device."""

import threading
from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from engine.cache.block_manager import KVMove
from engine.device.host_pool import HostPool
from engine.device.stream import Mark
from engine.device.weight_memory import WeightMemory
from engine.runner.sampler import Sampled
from engine.scheduler.config import SlowPasses
from engine.scheduler.cost_model import Load
from engine.scheduler.plan import ModelBatch, Verifier


class PassNotes:
    """What a runner tells of its passes since it was last asked."""

    def __init__(self) -> None:
        self.shape: tuple[int, int, int] | None = None
        """Of the last pass launched."""
        self.timings: list[tuple[Load, float]] = []
        """Passes of idle work and what each took, milliseconds; whoever learns from them empties it."""
        self._done: list[str] = []

    def add(self, what: str) -> None:
        """Note something that not every pass does."""
        self._done.append(what)

    def take(self) -> list[str]:
        """What was noted, and start anew."""
        if not self._done:
            return self._done
        done, self._done = self._done, []
        return done


class Runner(Verifier, Protocol):
    """Runs one model's passes; `ahead` and what follows it are for devices that queue work."""

    block_size: int
    host_pools: list[HostPool]
    """Slots for what waits in host memory, of blocks and of the pages of windows; none before asked for."""
    notes: PassNotes
    """What its passes did that not every pass does."""
    scratch_bytes: int
    """What the longest pass takes of a GPU beside weights and KV, measured by `warm_up`; else 0."""
    weights: WeightMemory | None
    """What can be put aside of its weights."""
    slow: SlowPasses | None
    """Of a model of which the processor computes a part beside a GPU."""
    freed: threading.Event
    """Set once a closed runner's memory is given back."""

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

    def trim_kv(self, highest: list[int]) -> None:
        """Give back KV memory behind the highest block in use, and behind the highest page of each window."""
        ...

    def offload_blocks(self, moves: list[KVMove]) -> None:
        """Queue copies of KV blocks to host memory, to slots below the capacity.

        In order with passes: later ones may write to the blocks, and `reload_blocks` finds the copies.
        """
        ...

    def reload_blocks(self, moves: list[KVMove]) -> None:
        """Queue copies back; later passes find them in place.

        Raises `MemoryError` when a GPU has no memory for the blocks; nothing was copied then.
        """
        ...

    def save_blocks(self, hosts: list[HostPool], moves: list[KVMove]) -> Mark:
        """`offload_blocks` to slots of other pools, one of each kind; the copies are there after the mark."""
        ...

    def restore_blocks(self, hosts: list[HostPool], moves: list[KVMove]) -> Mark:
        """`reload_blocks` from slots of other pools, which may be filled anew after the mark."""
        ...

    def rest(self) -> bool:
        """Give the device's memory back but keep everything else, so that `wake` is quick.

        Not on the engine's thread, and nothing may be launched until `wake`. False, with nothing changed,
        where weights cannot wait anywhere.
        """
        ...

    def wake(self) -> None:
        """Undo `rest`; raises `MemoryError`, still resting, when the device is full."""
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
