"""Which element type the KV of a model gets: the first that leaves room enough, by exact numbers."""

from dataclasses import dataclass, replace

from engine.device.fit_advice import DEVICE_KV_SHARE, KV_SHARE, LOAD_MARGIN
from engine.footprint.rules import DeviceRules, kv_bytes, weight_bytes
from engine.footprint.scratch import longest_pass, scratch_bytes
from engine.footprint.shape import Footprint
from kernels.quant.formats import KVFormat

ENOUGH_CHATS, ENOUGH_TOKENS = 4, 8000
"""Room for so many chats of so many tokens is enough, and so is room for one of the model's whole context."""


@dataclass(frozen=True, slots=True)
class HostRoom:
    """What one more model can have of the computer beside a GPU."""

    free_bytes: int | None
    layers: int | None = None
    """Layers that the processor is to compute, whole or their experts; None: as few as are needed."""


@dataclass(frozen=True, slots=True)
class Room:
    """Memory that one more model can have."""

    free_bytes: int | None
    """None: not known."""
    kv_budget_bytes: int | None = None
    """Most that KV may take; None: by the device's own rule."""
    host: HostRoom | None = None
    """None: the processor computes no part of a model."""


@dataclass(frozen=True, slots=True)
class KVChoice:
    """The element type of one model's KV."""

    kv_format: KVFormat
    note: str = ""
    """Why it is not the type before it, such as "float16 would hold 5,100 tokens"."""


def choose_kv(footprint: Footprint, rules: DeviceRules, room: Room) -> KVChoice:
    """The first of the rules' choices that leaves room enough beside the weights; else the smallest."""
    first, *others = rules.kv_choices
    chosen, nbytes = KVChoice(first), kv_room(footprint, rules, room)
    if room.free_bytes is None:
        return chosen
    for smaller in others:
        wider = replace(rules, kv_format=chosen.kv_format)
        if _is_enough(footprint, wider, nbytes):
            break
        held = _tokens_held(footprint, wider, nbytes)
        chosen = KVChoice(smaller, f"{wider.kv_format} would hold {held:,} tokens")
    return chosen


def kv_room(footprint: Footprint, rules: DeviceRules, room: Room) -> int:
    """As `engine.device.memory` and the engine's options divide memory."""
    if room.free_bytes is None:
        return 0
    left, budget = room.free_bytes - weight_bytes(footprint, rules), room.kv_budget_bytes
    if rules.on_gpu:
        scratch = scratch_bytes(footprint, rules, longest_pass(footprint, rules, left))
        share = max(0, int((left - scratch) * DEVICE_KV_SHARE))
        return share if budget is None else min(budget, share)
    if budget is None:
        budget = int(room.free_bytes * KV_SHARE)
    return min(budget, left - LOAD_MARGIN // 2)


def _is_enough(footprint: Footprint, rules: DeviceRules, nbytes: int) -> bool:
    whole = footprint.context_length
    chats = ENOUGH_CHATS * kv_bytes(footprint, rules, min(whole, ENOUGH_TOKENS))
    return nbytes >= min(chats, kv_bytes(footprint, rules, whole))


def _tokens_held(footprint: Footprint, rules: DeviceRules, nbytes: int) -> int:
    """Tokens of one chat, in whole blocks."""
    fewest, most = 0, footprint.context_length // rules.block_size
    while fewest < most:
        middle = (fewest + most + 1) // 2
        fits = kv_bytes(footprint, rules, middle * rules.block_size) <= nbytes
        fewest, most = (middle, most) if fits else (fewest, middle - 1)
    return fewest * rules.block_size
