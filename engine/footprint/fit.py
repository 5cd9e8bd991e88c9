"""Whether a file fits what is free, how many chats fit beside it, and what would make it fit."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from engine.device.fit_advice import BITS, LOAD_MARGIN
from engine.footprint.kv_choice import Room, choose_kv, kv_room
from engine.footprint.rules import DeviceRules, Holding, kv_bytes, weight_bytes
from engine.footprint.scratch import longest_pass, scratch_bytes
from engine.footprint.shape import Experts, Footprint, Linear, Matrix
from engine.footprint.split import Split, choose_split, host_needs, parts_of, split_rules
from kernels.quant.formats import FORMATS, GGMLType, KVFormat

CHAT_TOKENS = 8192
"""Length of a chat by which room is told where nobody says another."""
SLOTS_PER_CONTEXT = 64
"""No model reserves KV for more chats of full length than this."""
_LEAST_CONTEXT = 512
_MAIN_TYPE = {
    "Q8_0": GGMLType.Q8_0,
    "Q6_K": GGMLType.Q6_K,
    "Q5_K_M": GGMLType.Q5_K,
    "Q4_K_M": GGMLType.Q4_K,
    "Q3_K_M": GGMLType.Q3_K,
    "Q2_K": GGMLType.Q2_K,
}
"""Of the usual mixtures, the type that most weights have."""


class Verdict(StrEnum):
    """How a file and the free memory get on."""

    FITS = "fits"
    FEWER = "fewer"
    """It can be loaded, but not all of the wanted context is held at once."""
    TOO_LARGE = "too large"
    UNKNOWN = "unknown"
    """Nobody says what is free."""


class AdviceKind(StrEnum):
    """What a remedy changes."""

    CONTEXT = "context"
    KV_TYPE = "kv type"
    WEIGHT_TYPE = "weight type"
    QUANTISATION = "quantisation"


@dataclass(frozen=True, slots=True)
class Advice:
    """One change after which what was wanted would fit."""

    kind: AdviceKind
    value: str
    """The type or mixture, or the tokens of one chat."""
    nbytes: int
    """What weights and wanted KV would take then."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What a file will take, in bytes, of what there is."""

    verdict: Verdict
    weight_bytes: int
    kv_bytes: int
    """Of all wanted chats."""
    scratch_bytes: int
    """What must stay free beside weights and KV."""
    free_bytes: int | None
    context: int
    """Tokens of a chat."""
    chats: int
    """Wanted."""
    chat_bytes: int
    """KV of one of them."""
    chats_that_fit: int
    kv_room: int
    """Bytes that chats can have beside the weights."""
    advice: tuple[Advice, ...] = ()
    kv_format: str = ""
    """Element type of the KV."""
    kv_note: str = ""
    """Why it is not a wider one."""
    split: Split | None = None
    """What the processor computes, where the GPU does not hold all of it; the other numbers are the GPU's."""
    host_short: int = 0
    """Bytes that host memory lacks for that."""
    tok_s: float | None = None
    """Speed that is expected of such a division, for one chat; None where nobody said it."""


def fit(
    footprint: Footprint, rules: DeviceRules, room: Room, *, context: int | None = None, chats: int = 1
) -> Fit:
    """Hold a file against a device and what it has free.

    context: tokens of a chat, `CHAT_TOKENS` where None; never more than the file's own.
    """
    context = max(1, min(context or CHAT_TOKENS, footprint.context_length))
    split = choose_split(footprint, rules, room)
    if split is None:
        return _advised(footprint, rules, room, context, chats)
    device, _ = parts_of(footprint, split.placement)
    made = replace(_advised(device, split_rules(rules), room, context, chats), split=split)
    free = None if room.host is None else room.host.free_bytes
    short = 0 if free is None else max(0, host_needs(split) - free)
    if short:
        made = replace(made, verdict=Verdict.TOO_LARGE, chats_that_fit=0, host_short=short)
    return made


def _advised(footprint: Footprint, rules: DeviceRules, room: Room, context: int, chats: int) -> Fit:
    chosen = choose_kv(footprint, rules, room)
    rules = replace(rules, kv_format=chosen.kv_format)
    made = replace(_fit(footprint, rules, room, context, chats), kv_note=chosen.note)
    if made.verdict in (Verdict.FITS, Verdict.UNKNOWN):
        return made
    return replace(made, advice=tuple(_advice(footprint, rules, room, made)))


def _fit(footprint: Footprint, rules: DeviceRules, room: Room, context: int, chats: int) -> Fit:
    weights, chat = weight_bytes(footprint, rules), kv_bytes(footprint, rules, context)
    most = SLOTS_PER_CONTEXT * footprint.context_length // context
    for_chats = max(0, kv_room(footprint, rules, room))
    fitting = min(for_chats // chat, most)
    verdict = Verdict.FITS if fitting >= chats else Verdict.FEWER
    if room.free_bytes is None:
        verdict = Verdict.UNKNOWN
    elif weights + LOAD_MARGIN > room.free_bytes:
        verdict, fitting = Verdict.TOO_LARGE, 0
    longest = longest_pass(footprint, rules, (room.free_bytes or 0) - weights)
    scratch = max(LOAD_MARGIN, scratch_bytes(footprint, rules, longest))
    return Fit(
        verdict, weights, chats * chat, scratch, room.free_bytes, context, chats, chat, fitting,
        for_chats, kv_format=rules.kv_format,
    )  # fmt: skip


def _advice(footprint: Footprint, rules: DeviceRules, room: Room, wanted: Fit) -> Iterator[Advice]:
    """What alone would be enough, the least loss first."""

    def enough(footprint: Footprint, rules: DeviceRules) -> int | None:
        made = _fit(footprint, rules, room, wanted.context, wanted.chats)
        return made.weight_bytes + made.kv_bytes if made.verdict is Verdict.FITS else None

    narrow_kv = replace(rules, kv_format="q8_0")
    if rules.kv_format != "q8_0" and (taken := enough(footprint, narrow_kv)):
        yield Advice(AdviceKind.KV_TYPE, "q8_0", taken)
    kv_format: KVFormat = "bfloat16" if rules.kv_format == "float32" else rules.kv_format
    narrow = replace(rules, weight_itemsize=2, kv_format=kv_format)
    widened = rules.holding is not Holding.PLANES and rules.weight_itemsize > 2
    if widened and (taken := enough(footprint, narrow)):
        yield Advice(AdviceKind.WEIGHT_TYPE, "bfloat16", taken)
    for name, bits in BITS.items():
        smaller = _requantised(footprint, rules, _MAIN_TYPE[name], bits)
        if weight_bytes(smaller, rules) < wanted.weight_bytes and (taken := enough(smaller, rules)):
            yield Advice(AdviceKind.QUANTISATION, name, taken)
            break
    if wanted.verdict is Verdict.FEWER:
        tokens = _longest(footprint, rules, room, wanted)
        if tokens >= _LEAST_CONTEXT:
            taken = wanted.weight_bytes + wanted.chats * kv_bytes(footprint, rules, tokens)
            yield Advice(AdviceKind.CONTEXT, str(tokens), taken)


def _longest(footprint: Footprint, rules: DeviceRules, room: Room, wanted: Fit) -> int:
    """Tokens, in whole blocks, of as many chats as are wanted."""
    fewest, most = 0, wanted.context // rules.block_size
    while fewest < most:
        middle = (fewest + most + 1) // 2
        made = _fit(footprint, rules, room, middle * rules.block_size, wanted.chats)
        fewest, most = (middle, most) if made.verdict is Verdict.FITS else (fewest, middle - 1)
    return fewest * rules.block_size


def _requantised(footprint: Footprint, rules: DeviceRules, kind: GGMLType, bits: float) -> Footprint:
    """The same model with all matrices of one type; a mixture's other types count as more rows."""
    form = FORMATS[kind]
    more = bits / (8 * form.nbytes / form.elements)
    # What is widened takes the same, whatever the type.
    wider = 1.0 if rules.holding is Holding.DENSE else more

    def matrices(parts: tuple[Matrix, ...], factor: float) -> tuple[Matrix, ...]:
        return tuple(Matrix(kind, int(part.rows * factor)) for part in parts)

    def linear(one: Linear) -> Linear:
        return one._replace(parts=matrices(one.parts, wider))

    def experts(one: Experts) -> Experts:
        return one._replace(gate_up=matrices(one.gate_up, more), down=matrices((one.down,), more)[0])

    return replace(
        footprint,
        linears=tuple((linear(one), count) for one, count in footprint.linears),
        experts=tuple((experts(one), count) for one, count in footprint.experts),
        embedding=linear(footprint.embedding),
        kinds=(),
        order=(),
    )
