"""What would help when a model does not fit: in numbers, and only what would really be enough."""

from dataclasses import dataclass

from engine.api.errors import EngineError

LOAD_MARGIN = 256 << 20
"""Bytes that must stay free after a model's weights are loaded."""

KV_SHARE = 0.5
"""Part of the free memory that KV may take on a computer that others use too."""

DEVICE_KV_SHARE = 0.98
"""Part of a GPU's memory left by weights, graphs and the scratch of the longest pass that KV may take: the
rest is for what other programs draw."""

BITS = {"Q8_0": 8.5, "Q6_K": 6.6, "Q5_K_M": 5.7, "Q4_K_M": 4.9, "Q3_K_M": 3.9, "Q2_K": 3.4}
"""Bits of a weight in files of the usual mixtures, the widest first; embeddings are counted in."""
_REPACKED = 17 / 16
"""What planes take of a device, relative to the file."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a model's weights ask for."""

    name: str
    weight_bytes: int
    parameters: int
    narrow_bytes: int | None = None
    """What bfloat16 weights would need, where that setting is a choice."""
    as_in_file: bool = False
    """Whether weights stay quantised, so that a smaller quantisation helps."""


@dataclass(frozen=True, slots=True)
class Holders:
    """Who has memory that could be given back."""

    models: tuple[tuple[str, int], ...] = ()
    """Resident models and the bytes of their weights."""
    kv_bytes: int = 0
    """Held by live sequences."""
    limit_bytes: int | None = None
    """`vram_limit`, where it is set."""
    beyond_limit: int = 0
    """Bytes that are free beyond the limit."""


def does_not_fit(need: Need, free: int, holders: Holders, cause: str = "") -> EngineError:
    """The error that says what is needed, what is there, and what would be enough.

    cause: what failed when it was tried, where the numbers alone did not forbid it.
    """
    said = (
        f"{need.name}: its weights need {format_bytes(need.weight_bytes)} and {format_bytes(free)} are free"
    )
    if cause:
        said += f" ({cause})"
    help_ = _remedies(need, free, holders)
    return EngineError(f"{said}; what would help: {'; or '.join(help_)}.")


def _remedies(need: Need, free: int, holders: Holders) -> list[str]:
    room = max(0, free - LOAD_MARGIN)
    # Where the weights alone would have fitted, something beside them did not: ask for as much more.
    missing = max(need.weight_bytes - room, LOAD_MARGIN)
    found = []
    if need.narrow_bytes is not None and need.narrow_bytes <= room:
        found.append(f'with engine.weight_dtype = "bfloat16" it would need {format_bytes(need.narrow_bytes)}')
    if need.as_in_file and (smaller := _smaller(need, room)):
        found.append(smaller)
    if closing := _closing(holders.models, missing):
        found.append(closing)
    if holders.kv_bytes >= missing:
        found.append(f"ending chats, whose context holds {format_bytes(holders.kv_bytes)}")
    if holders.limit_bytes is not None and holders.beyond_limit >= missing:
        enough = holders.limit_bytes + missing
        found.append(
            f"a --vram-limit of {format_bytes(enough)} instead of {format_bytes(holders.limit_bytes)}"
        )
    most = int(room * need.parameters / max(1, need.weight_bytes))
    if 0 < most < need.parameters:
        found.append(f"a model of at most {format_count(most)} weights of this kind")
    found.append("closing other programs")
    return found


def _smaller(need: Need, room: int) -> str | None:
    """The largest usual quantisation that would fit, if it is smaller than this one."""
    for name, bits in BITS.items():
        size = int(need.parameters * bits / 8 * _REPACKED)
        if size <= room and size < need.weight_bytes:
            return f"the same model as {name}, about {format_bytes(size)}"
    return None


def _closing(models: tuple[tuple[str, int], ...], missing: int) -> str | None:
    """The smallest model that would be enough, or as many as are needed, the largest first."""
    by_size = sorted(models, key=lambda model: model[1])
    alone = next((model for model in by_size if model[1] >= missing), None)
    chosen, total = ([alone], missing) if alone else ([], 0)
    while total < missing and by_size:
        chosen.append(by_size.pop())
        total += chosen[-1][1]
    if total < missing:
        return None
    return "closing " + " and ".join(f"{name} ({format_bytes(size)})" for name, size in chosen)


def format_bytes(count: float) -> str:
    """12_345_678 → "11.8 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def format_count(count: int) -> str:
    """1_250_000_000 → "1.2 billion"."""
    return f"{count / 1e9:.1f} billion" if count >= 10**9 else f"{count / 1e6:.0f} million"
