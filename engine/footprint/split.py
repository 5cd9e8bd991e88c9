"""How a model that a GPU does not hold is divided between it and the processor, by exact numbers.

`engine.model.split.placement` says what the two kinds of division are. As little as possible goes to the
processor: what stays leaves the GPU room for a chat of `LEAST_CHAT` tokens, the scratch of a pass and the
margin that every load keeps. Experts go first, layer by layer; whole layers only where no experts are left.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from engine.device.fit_advice import DEVICE_KV_SHARE, LOAD_MARGIN
from engine.footprint.kv_choice import Room, kv_room
from engine.footprint.rules import (
    DeviceRules,
    Holding,
    embedding_bytes,
    expert_bytes,
    kv_bytes,
    linear_bytes,
    read_bytes,
    weight_bytes,
)
from engine.footprint.scratch import scratch_bytes
from engine.footprint.shape import Footprint, KVLayers, LayerParts, Part, add_parts
from engine.model.split.placement import Placement

LONGEST_PASS = 512
"""Prompt tokens of a pass at most: longer ones would be no quicker a token on the processor."""
LONGEST_STREAMED = 2048
"""The same where the processor's weights cross over to the GPU, if it has the memory."""
STREAMED_SHARE = 0.5
"""Most of what weights leave that such a pass may take: each costs a crossing of all of them."""
LEAST_WHOLE = 512
"""Tokens of KV for which a model that is not divided must leave room."""
LEAST_CHAT = 8192
"""Tokens of a chat that a division leaves the GPU room for."""


@dataclass(frozen=True, slots=True)
class Split:
    """One division and what it takes, in bytes."""

    placement: Placement
    num_layers: int
    device_bytes: int
    """Weights on the GPU."""
    host_bytes: int
    """Weights in host memory."""
    host_kv_bytes: int
    """KV of a chat of `LEAST_CHAT` tokens there."""
    device_read: int
    """Of weights that a token reads on the GPU."""
    host_read: int
    """The same of those in host memory."""

    @property
    def short_text(self) -> str:
        """Such as `8 of 36 layers on the processor`."""
        whole, experts = self.placement.layers, self.placement.experts
        what = f"{whole} of {self.num_layers} layers" if whole else f"experts of {experts} layers"
        return f"{what} on the processor"

    @property
    def text(self) -> str:
        """Such as `28 of 36 layers on the GPU, 8 on the processor`."""
        whole, experts, total = self.placement.layers, self.placement.experts, self.num_layers
        if not whole:
            return f"{total} layers on the GPU, the experts of {experts} on the processor"
        said = f"{total - whole} of {total} layers on the GPU, {whole} on the processor"
        return f"{said} with the experts of {experts} others" if experts else said


def split_rules(rules: DeviceRules, longest: int = LONGEST_PASS) -> DeviceRules:
    """Those of a GPU for a model that is divided."""
    return replace(rules, pass_tokens=min(rules.pass_tokens, longest))


def streaming_bytes(footprint: Footprint, rules: DeviceRules, placement: Placement) -> int:
    """Memory of the GPU in which the processor's weights and KV take turns, layer by layer.

    What is on its way there has room in the margin that every load keeps. Experts take long to cross and few
    layers' are as much as the scratch of the longest pass, so that is counted where they alone do.
    """
    if rules.holding is not Holding.PLANES:
        return 0
    kinds, first = [footprint.kinds[kind] for kind in footprint.order], placement.layers
    outside = set(_routed(kinds, first)[: placement.experts])
    whole = [kinds[index].rest for index in range(first)]
    experts = [kinds[index].experts for index in (*range(first), *outside)]
    largest = sum(max((_part_bytes(part, rules) for part in parts), default=0) for parts in (whole, experts))
    tokens = min(LEAST_CHAT, footprint.context_length)
    kv = max((kv_bytes(_layer_kv(footprint, kind), rules, tokens) for kind in kinds[:first]), default=0)
    if first:
        return largest + kv
    device = parts_of(footprint, placement)[0]
    short, long = (
        scratch_bytes(device, split_rules(rules, most), min(most, rules.pass_tokens))
        for most in (LONGEST_PASS, LONGEST_STREAMED)
    )
    return largest + kv + long - short


def _part_bytes(part: Part, rules: DeviceRules) -> int:
    linears = sum(count * linear_bytes(linear, rules) for linear, count in part.linears)
    return linears + sum(count * expert_bytes(experts, rules) for experts, count in part.experts)


def _layer_kv(footprint: Footprint, kind: LayerParts) -> Footprint:
    return replace(footprint, kv=(kind.kv._replace(layers=1),))


def choose_split(footprint: Footprint, rules: DeviceRules, room: Room) -> Split | None:
    """The division of a model, None where there is none or where the GPU would hold no part of it.

    A model that fits is divided only where the number of layers is given. Host memory is not looked at.
    """
    host = room.host
    if host is None or rules.host is None or not footprint.order:
        return None
    if host.layers is not None:
        asked = _of_layers(footprint, host.layers)
        return make_split(footprint, rules, asked) if asked.splits else None
    free = room.free_bytes
    if free is None or _leaves_room(footprint, rules, room, LEAST_WHOLE):
        return None

    def fits(one: Placement) -> bool:
        left = replace(room, free_bytes=free - streaming_bytes(footprint, rules, one))
        return _leaves_room(parts_of(footprint, one)[0], split_rules(rules), left, LEAST_CHAT)

    made = _first([*_placements(footprint)], fits)
    return None if made is None else make_split(footprint, rules, made)


def host_needs(split: Split) -> int:
    """Host memory that must be free for it."""
    return split.host_bytes + split.host_kv_bytes + LOAD_MARGIN


def make_split(footprint: Footprint, rules: DeviceRules, placement: Placement) -> Split:
    """Count one division."""
    assert rules.host is not None
    device, host = parts_of(footprint, placement)
    # Operations beside a GPU have the KV type and the blocks that it has.
    there = replace(rules.host, kv_format=rules.kv_format, block_size=rules.block_size)
    around = 0 if placement.layers else embedding_bytes(host, there)
    return Split(
        placement,
        len(footprint.order),
        weight_bytes(device, rules),
        weight_bytes(host, there) - around,
        kv_bytes(host, there, min(LEAST_CHAT, footprint.context_length)),
        read_bytes(device, rules),
        read_bytes(host, there),
    )


def parts_of(footprint: Footprint, placement: Placement) -> tuple[Footprint, Footprint]:
    """What of a model is the GPU's and what the processor's; it has an embedding if it has layers."""
    kinds = [footprint.kinds[kind] for kind in footprint.order]
    first = placement.layers
    outside = set(_routed(kinds, first)[: placement.experts])
    here = [part for kind in kinds[first:] for part in (kind.rest, kind.experts)]
    there = [part for kind in kinds[:first] for part in (kind.rest, kind.experts)]
    for index in outside:
        here.remove(kinds[index].experts)
        there.append(kinds[index].experts)
    whole = Part(footprint.linears, footprint.experts, footprint.vector_values)
    layers = add_parts((part, 1) for part in here + there)
    # What belongs to no layer: the output matrix and the norm before it.
    ends = add_parts([(whole, 1), (layers, -1)])
    device = _footprint(footprint, [ends, *here], kinds[first:])
    # The GPU's output matrix is no embedding of the processor's.
    host = replace(_footprint(footprint, there, kinds[:first]), tied=False)
    return replace(device, tied=footprint.tied or bool(first)), host


def _footprint(whole: Footprint, parts: Iterable[Part], kinds: Iterable[LayerParts]) -> Footprint:
    added = add_parts((part, 1) for part in parts)
    layers = Counter(kind.kv[1:] for kind in kinds)
    kv = tuple(KVLayers(layers[group[1:]], *group[1:]) for group in whole.kv)
    made = replace(whole, linears=added.linears, experts=added.experts, kv=kv, kinds=(), order=())
    return replace(made, vector_values=added.vector_values)


def _routed(kinds: Iterable[LayerParts], first: int = 0) -> list[int]:
    """Numbers of layers with experts, from one on."""
    return [index for index, kind in enumerate(kinds) if kind.experts != Part() and index >= first]


def _placements(footprint: Footprint) -> list[Placement]:
    """All that are tried, those that leave the GPU most first; it keeps a layer at least."""
    kinds = [footprint.kinds[kind] for kind in footprint.order]
    routed = _routed(kinds)
    experts = [Placement(0, count) for count in range(1, len(routed) + 1)]
    whole = [Placement(first, len(_routed(kinds, first))) for first in range(1, len(kinds))]
    return experts + whole


def _of_layers(footprint: Footprint, count: int) -> Placement:
    """So many layers: of experts where there are any, else whole ones."""
    kinds = [footprint.kinds[kind] for kind in footprint.order]
    routed = _routed(kinds)
    return Placement(0, min(count, len(routed))) if routed else Placement(min(count, len(kinds) - 1))


def _leaves_room(footprint: Footprint, rules: DeviceRules, room: Room, tokens: int) -> bool:
    """Whether weights leave room for a chat of so many tokens, in the least type of KV."""
    assert room.free_bytes is not None
    least = kv_bytes(footprint, rules, min(LEAST_WHOLE, footprint.context_length))
    needed = weight_bytes(footprint, rules) + LOAD_MARGIN + int(least / DEVICE_KV_SHARE)
    narrow = replace(rules, kv_format=rules.kv_choices[-1])
    chat = kv_bytes(footprint, narrow, min(tokens, footprint.context_length))
    return needed <= room.free_bytes and kv_room(footprint, narrow, room) >= chat


def _first(placements: list[Placement], fits: Callable[[Placement], bool]) -> Placement | None:
    """The first that fits; each leaves the GPU less than the one before."""
    low, high = 0, len(placements)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(placements[middle]) else (middle + 1, high)
    return placements[low] if low < len(placements) else None
