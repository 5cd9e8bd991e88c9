"""Deciding that the processor computes a part of a model, and loading that model.

`engine.model.split.placement` says what parts there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.api.errors import EngineError
from engine.device.fit_advice import KV_SHARE, LOAD_MARGIN, format_bytes
from engine.device.free_memory import free_host_bytes
from engine.device.memory import check_block_fits
from engine.footprint.kv_choice import HostRoom, Room
from engine.footprint.rules import DeviceRules
from engine.footprint.shape import Footprint
from engine.footprint.split import Split, choose_split, host_needs, make_split
from engine.gguf.file import GGUFFile
from engine.model.spec import ModelConfig
from engine.model.split.placement import Placement
from engine.model.split.split_decoder import SplitDecoder
from engine.model.split.split_weights import load_split_weights
from engine.model.weights import Progress
from engine.runner.split.split_kv import split_pool_bytes
from kernels.contract import Operations
from kernels.select import host_operations


@dataclass(frozen=True, slots=True)
class Dividing:
    """How models are divided where a GPU does not hold them."""

    host_layers: int | None = 0
    """Layers that the processor is to compute; None: as few as are needed."""
    placement: Placement | None = None
    """That of a model that is loaded again."""

    @property
    def always(self) -> bool:
        """Whether a model is divided that would fit whole."""
        return bool(self.host_layers) if self.placement is None else self.placement.splits

    def split(self, name: str, footprint: Footprint, rules: DeviceRules, room: Room) -> Split | None:
        """The division of a model, None for one that is the device's alone.

        Raises `EngineError` where host memory is too small for the processor's part.
        """
        host = HostRoom(free_host_bytes(), self.host_layers)
        if self.placement is not None:
            made = make_split(footprint, rules, self.placement) if self.placement.splits else None
        else:
            made = choose_split(footprint, rules, Room(room.free_bytes, room.kv_budget_bytes, host))
        if made is not None and (free := free_host_bytes()) < host_needs(made):
            raise _does_not_fit(name, made, room.free_bytes, free, self.host_layers)
        return made


def _does_not_fit(
    name: str, split: Split, device_free: int | None, host_free: int, host_layers: int | None
) -> EngineError:
    if host_layers:
        helps = f"fewer layers than host_layers = {host_layers}"
    else:
        helps = "a higher vram_limit or closing other models, so that more of it is on the GPU"
    return EngineError(
        f"{name}: {format_bytes(split.device_bytes)} of its weights go to the GPU, of which "
        f"{format_bytes(device_free or 0)} are free; the other {format_bytes(split.host_bytes)} and their "
        f"context need {format_bytes(host_needs(split))} of the computer's memory, of which "
        f"{format_bytes(host_free)} are free; what would help: {helps}; or a smaller quantisation; or "
        "closing other programs."
    )


@dataclass(frozen=True, slots=True)
class SplitSizes:
    """What a page takes of the device and of host memory, by pool."""

    device: list[int]
    host: list[int]

    def capped(self, name: str, pages: Sequence[int], block_size: int) -> list[int]:
        """So many pages of each pool, scratch included, or as many as host memory has room for."""
        room = int((free_host_bytes() - LOAD_MARGIN // 2) * KV_SHARE)
        check_block_fits(name, sum(self.host), block_size, room)
        return [
            min(count, 1 + room // size) if size else count
            for count, size in zip(pages, self.host, strict=True)
        ]


def split_sizes(ops: Operations, config: ModelConfig, placement: Placement) -> SplitSizes:
    """Of one model's KV; a pool of which the device has nothing costs it next to nothing."""
    host_ops = host_operations(ops.kv_format, ops.block_size)
    device, host = split_pool_bytes(ops, host_ops, config, placement.layers)
    return SplitSizes([max(1, size) for size in device], host)


def load_split_decoder(
    file: GGUFFile, config: ModelConfig, ops: Operations, placement: Placement, progress: Progress
) -> tuple[SplitDecoder, int, int]:
    """The decoder, and the bytes of its weights on the device and in host memory."""
    host_ops = host_operations(ops.kv_format, ops.block_size)
    weights = load_split_weights(file, config, placement, ops, host_ops, progress)
    decoder = SplitDecoder(config, weights, placement, ops, host_ops)
    ops.fallbacks += [note for note in host_ops.fallbacks if note not in ops.fallbacks]
    return decoder, weights.device.nbytes, weights.host.nbytes
