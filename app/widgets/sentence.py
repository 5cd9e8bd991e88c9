"""The engine's figures as a person would say them."""

from app.models.outside import count_outside
from app.settings.words import size_text
from engine import EngineStats, SequenceState

BETWEEN = " · "


def engine_sentence(stats: EngineStats) -> str:
    """Say what the engine does: `2 answering · 1 waiting · 60 tok/s · 1.8 GB free`."""
    return BETWEEN.join(engine_parts(stats))


def engine_parts(stats: EngineStats) -> list[str]:
    """The parts of that sentence."""
    states = [sequence.state for sequence in stats.sequences]
    paused = sum(sequence.user_paused for sequence in stats.sequences)
    counts = (
        (states.count(SequenceState.DECODE), "answering"),
        (states.count(SequenceState.PREFILL), "reading"),
        (stats.queue_length, "waiting"),
        (paused, "paused"),
        (count_outside(stats), "from outside"),
    )
    parts = [f"{count} {word}" for count, word in counts if count]
    if not parts:
        parts.append("idle")
    elif stats.decode_tok_s:
        parts.append(f"{stats.decode_tok_s:.0f} tok/s")
    parts.append(f"{size_text(free_bytes(stats))} free")
    return parts


def free_bytes(stats: EngineStats) -> int:
    """Context memory that nothing is in."""
    return max(0, stats.kv_bytes_total - stats.kv_bytes_used - stats.kv_bytes_cached)
