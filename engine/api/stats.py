"""One frozen snapshot of the engine, taken at most once per tick.

The panel, `tui-chat bench` and tests read these and nothing else.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from engine.api.request import Priority


class SequenceState(StrEnum):
    """Where a sequence stands."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class SequenceStats:
    """One live sequence."""

    sequence_id: int
    model: str
    label: str
    state: SequenceState
    prompt_tokens: int
    computed_tokens: int
    """Tokens whose KV is in blocks."""
    context_tokens: int
    """Prompt and generated tokens together."""
    context_length: int
    blocks_own: int
    blocks_shared: int
    """Blocks that another sequence holds too."""
    tok_s: float
    """Decode speed over the last second."""
    queue_position: int
    """1-based while queued, else 0."""
    note: str = ""
    """Why it waits, when it waits."""
    priority: Priority = Priority.NORMAL
    focused: bool = False
    """Whether it is served before all others."""
    user_paused: bool = False
    """Whether it was paused on request; else a paused sequence waits for KV memory."""
    wait_s: float | None = None
    """Seconds to its first token while it is queued or read, by the cost model; None: not known."""
    blocks_host: int = 0
    """Blocks whose KV waits in host memory."""
    drafted: int = 0
    """Tokens that were drafted ahead of the model so far."""
    accepted: int = 0
    """Of these, how many the model accepted."""


@dataclass(frozen=True, slots=True)
class KVGroupStats:
    """KV of a model's layers that keep it for equally long."""

    window: int
    """Tokens that they see; 0: all."""
    bytes_per_token: int
    bytes_used: int
    """Held by live sequences."""
    bytes_cached: int
    """Kept for prefix hits."""


class ModelState(StrEnum):
    """Where a model's weights are."""

    LOADED = "loaded"
    PAUSED = "paused"
    """Put aside: it comes back by itself when it is asked."""


@dataclass(frozen=True, slots=True)
class ModelStats:
    """One model that is resident or aside."""

    name: str
    path: str
    weight_bytes: int
    kv_bytes_per_token: int
    """Of a token that all layers see."""
    context_length: int
    kv_groups: tuple[KVGroupStats, ...] = ()
    """Layers that see everything first, then by the size of their window."""
    kv_dtype: str = ""
    kv_note: str = ""
    """Why its KV is not of a wider type, such as "float16 would hold 5,100 tokens"."""
    placement: str = ""
    """What computes its layers, where that is not the device alone."""
    by_torch: tuple[str, ...] = ()
    """What torch computes of it in place of a GPU's kernels, what that takes, and why."""
    model_id: int = 0
    state: ModelState = ModelState.LOADED
    idle_since: float | None = None
    """Monotonic clock at which its last request came or ended; None while it works."""
    device: str = ""
    """What it is on, where that is one of several devices."""


@dataclass(frozen=True, slots=True)
class KVDiskStats:
    """KV of chats that is kept in files."""

    bytes_used: int
    """Of all models, this program's and others' with the same folder."""
    bytes_limit: int
    restores: int = 0
    """Requests that got KV back from files."""
    tokens_restored: int = 0
    tokens_saved: int = 0
    """Written, without those that files had already."""
    refusals: tuple[tuple[str, int], ...] = ()
    """Why KV of a chat could not be used or saved, and how often."""
    note: str = ""
    """The last of these causes while nothing was restored since."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The whole engine."""

    device: str
    kernels: str
    """Which implementation serves the operations, e.g. "torch float32"."""
    kv_dtype: str
    """Of all models; of the next one where there is none."""
    block_size: int
    kv_bytes_total: int
    kv_bytes_used: int
    """Held by live sequences."""
    kv_bytes_cached: int
    """Kept for prefix hits, given up when needed."""
    blocks_used: int
    blocks_cached: int
    rows: int
    """Decode rows of the last tick."""
    prefill_tokens: int
    """Prefill tokens of the last tick."""
    tick_ms: float
    """Smoothed duration of a tick."""
    ticks: int
    queue_length: int
    """Sequences that wait their turn or for memory; not those that were paused on request."""
    decode_tok_s: float
    """Over the last second, all sequences."""
    prefill_tok_s: float
    process_bytes: int
    """Resident memory of this process."""
    preemptions: int
    """How often a sequence made room for others because KV memory was full."""
    kv_bytes_host: int = 0
    """KV that waits in host memory."""
    tick_limit_ms: float = 0.0
    """Longest tick that is planned while somebody decodes; 0 while nobody does."""
    tick_error: float = 0.0
    """|predicted − measured| of ticks, relative, the 95th percentile of the last few hundred."""
    sequences: tuple[SequenceStats, ...] = ()
    models: tuple[ModelStats, ...] = ()
    fallbacks: tuple[str, ...] = ()
    """Operations that run on a slower implementation than this device has."""
    kv_disk: KVDiskStats | None = None
    """None where KV is not kept in files."""
    failure: str = ""
    """Why the device serves nothing any more until a restart; of several together: why none of them does."""
    lost_models: tuple[int, ...] = ()
    """Ids of the models that went with it."""
    parts: tuple["EngineStats", ...] = ()
    """The same of each device, where these are the figures of several together."""

    def can_move(self, model_id: int) -> bool:
        """Whether a model went with its device, while another one serves and could load its file."""
        lost = any(model_id in part.lost_models for part in self.parts)
        return lost and any(not part.failure for part in self.parts)

    def of_device(self, device: str) -> "EngineStats":
        """The figures of one device; these where there is no other."""
        return next((part for part in self.parts if part.device == device), self)

    def device_of(self, path: Path) -> str:
        """What has the model of a file; all of them for one that none has."""
        return next((one.device for one in self.models if one.device and one.path == str(path)), self.device)

    @property
    def slower(self) -> tuple[str, ...]:
        """All that runs on a slower implementation than it could: of every model, and of one by its name."""
        own = (f"{model.name}: {text}" for model in self.models for text in model.by_torch)
        return (*self.fallbacks, *own)
