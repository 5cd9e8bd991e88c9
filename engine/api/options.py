"""How an engine runs: every option in one place, typed, checked when it is made."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from pathlib import Path

from engine.api.errors import EngineError


class Offload(StrEnum):
    """Whether evicted KV is copied to host memory."""

    AUTO = "auto"
    """Where bringing it back is quicker than computing it again."""
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of one `Engine`; raises `EngineError` naming the first that cannot be served."""

    device: str = "auto"
    """"auto", "cpu" or "cuda[:N]"; of several GPUs one engine serves one."""
    kv_budget_bytes: int | None = None
    """Most KV memory of all models together; None for what the device has left."""
    vram_limit_bytes: int | None = None
    """Use no more of a GPU than this, weights and KV together."""
    host_layers: str | int = "auto"
    """Layers that the processor computes beside a GPU, of experts where a model has them, else whole ones:
    "auto" for as few as the GPU's memory makes needful, "never", or so many of each model."""
    kv_dtype: str = "auto"
    """Element type of the KV: "auto" is as wide as leaves a model room for its context or for four chats
    of 8,000 tokens, else q8_0; another name holds whatever the room."""
    weight_dtype: str = "auto"
    tick_factor: float | None = None
    """Longest tick, in idle ticks, while a prompt is read beside running answers; None for two, and for so
    much more as the device's operations allow."""
    kv_offload: str = "auto"
    """Whether KV that must make room is kept in host memory: "auto" where that is quicker than
    computing it again, "always" or "never"."""
    host_kv_bytes: int | None = None
    """Host memory for it; None for a quarter of what is free beside a GPU, and none on a CPU."""
    kv_disk_folder: Path | None = None
    """Where KV of chats is kept, so that a later program need not compute it again; None for nowhere."""
    kv_disk_bytes: int | None = None
    """Most bytes of these files; None for a tenth of what the disk has free, and no more than 8 GiB; 0
    for none, and what is there goes."""
    max_prefill_tokens: int | None = None
    """Tokens read in one tick while nobody decodes; None for what serves the device best."""
    threads: int | None = None
    """Processor threads, process-wide; None for the cores that the process may use, less two of many where
    they compute beside a GPU."""
    cache_folder: Path | None = None
    """Where compiled CPU kernels and the CPU's measured type of weights are kept between runs,
    process-wide; None for nowhere."""
    speculation: str = "auto"
    """"auto" drafts tokens from the text so far where that is expected to pay, "off" never does; the
    text is the same."""
    batch_independent: bool = False
    """On a GPU: an answer's bits depend on its own tokens alone, not on what else runs; costs speed."""
    name_of: Callable[[Path], str] = attrgetter("stem")
    """What statistics and errors call the model of a file: its name without its ending, or whatever the
    caller knows it by."""
    first_id: int = 1
    """Of models and sequences; the next ones follow in steps of `id_step`, so that engines beside each other
    need not give an id twice."""
    id_step: int = 1
    elsewhere: Callable[[], str] = str
    """Names of other devices whose engines could take over the models of this one's, "" for none: an engine
    that gives its device up says so."""
    debug: bool = False
    """Check every invariant in every tick."""

    def __post_init__(self) -> None:
        """Check what needs no device to be known."""
        _at_least("kv_budget_bytes", self.kv_budget_bytes, 1)
        _at_least("host_kv_bytes", self.host_kv_bytes, 0)
        _at_least("kv_disk_bytes", self.kv_disk_bytes, 0)
        _at_least("max_prefill_tokens", self.max_prefill_tokens, 1)
        _at_least("threads", self.threads, 1)
        _at_least("first_id", self.first_id, 1)
        _at_least("id_step", self.id_step, 1)
        if self.tick_factor is not None and not 1.0 <= self.tick_factor < float("inf"):
            raise EngineError(f"engine options: tick_factor: {self.tick_factor} is not a number from 1 on")
        _one_of("kv_offload", self.kv_offload, *Offload)
        _one_of("speculation", self.speculation, "auto", "off")
        if isinstance(self.host_layers, str):
            _one_of("host_layers", self.host_layers, "auto", "never", "a number of layers")
        else:
            _at_least("host_layers", self.host_layers, 0)
        if self.batch_independent and self.host_layers not in ("auto", "never", 0):
            raise EngineError(
                f"engine options: host_layers: {self.host_layers} with batch_independent, which only a GPU "
                "computes; leave one of them out"
            )

    @property
    def forced_host_layers(self) -> int | None:
        """A number of layers that is given; 0 where there are to be none, None where need decides."""
        if self.host_layers == "auto":
            return 0 if self.batch_independent else None
        return 0 if isinstance(self.host_layers, str) else self.host_layers


def check_context_length(wanted: int | None) -> None:
    """Raise `EngineError` for a length that no sequence can have."""
    if wanted is not None and wanted < 1:
        raise EngineError(f"context_length: {wanted} is not at least 1")


def _at_least(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise EngineError(f"engine options: {name}: {value} is not at least {least}")


def _one_of(name: str, value: str, *choices: str) -> None:
    if value not in choices:
        raise EngineError(f"engine options: {name}: '{value}' is not one of {', '.join(choices)}")
