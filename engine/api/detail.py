"""A close look at the engine: every KV block and what answers have cost; taken only when asked for."""

from dataclasses import dataclass
from typing import NamedTuple

from engine.api.stats import EngineStats


class KVHolding(NamedTuple):
    """The blocks of a pool that one sequence holds."""

    sequence_id: int
    blocks: bytes
    """Their numbers in the order of its tokens, as 32-bit integers of this machine."""


@dataclass(frozen=True, slots=True)
class KVPool:
    """The KV blocks of a model's layers that see equally many tokens."""

    model: str
    window: int
    """Tokens that they see; 0: all."""
    block_size: int
    """Tokens of a block."""
    block_bytes: int
    used: bytes
    """A byte a block, 1 where it is held or kept for prefix hits. Block 0 is never used."""
    holdings: tuple[KVHolding, ...]
    """A block that several sequences hold is in each one's."""
    host_blocks: int
    """Blocks for which there is host memory."""
    host_used: int
    """Of these, how many wait there."""
    owners: tuple[str, ...] = ()
    """Names that requests gave their KV; the first is nobody's."""
    owner_of: bytes = b""
    """For each block the place of its last owner's name, as 32-bit integers; empty where it is not known."""
    device: str = ""
    """Whose memory it is, where there are several devices."""


class SequenceDetail(NamedTuple):
    """What one live sequence has cost so far."""

    sequence_id: int
    cached_tokens: int
    """Of its prompt, how many came from the prefix cache."""
    saved_ms: float
    """What reading these would have taken."""
    preemptions: int
    """How often it made room for others."""
    queue_ms: float | None
    """From submit to the first tick that ran a token of it; None while it waits for that."""
    ttft_ms: float | None
    """From submit to its first token; None before that."""


@dataclass(frozen=True, slots=True)
class EngineDetail:
    """All of it, of one moment."""

    stats: EngineStats
    pools: tuple[KVPool, ...]
    """Of every resident model: blocks first, then the pages of each kind of windowed layers."""
    sequences: tuple[SequenceDetail, ...]


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What a GPU's driver tells; None for what it does not."""

    memory_used: int | None
    """Bytes, of every program."""
    memory_total: int | None
    watts: float | None
    device: str = ""
    """Which one it is, where there are several."""
    parts: tuple["DeviceUse", ...] = ()
    """The same of each, where these are the sums of several."""


class TickRecord(NamedTuple):
    """One tick."""

    ended_at: float
    """`time.perf_counter()` when its results were there, before anybody was told."""
    rows: int
    """Decode rows."""
    chunk_tokens: int
    """Prompt tokens."""
    shapes: tuple[tuple[int, int, int], ...]
    """Of each pass as the device ran it, padding included: decode rows, chunks, tokens."""
    predicted_ms: float
    """By the cost model, before it learned of this tick; 0 for what it never saw."""
    measured_ms: float
    done: tuple[str, ...]
    """What else was done in it or just before: captures, first runs, memory mapped, blocks moved."""
    limit_ms: float = 0.0
    """Longest that it was to take; 0 where nobody decoded."""
    waiting: int = 0
    """Sequences of which it computed nothing: they wait or are paused."""
