"""What a user or a device may choose about scheduling."""

from dataclasses import dataclass

from engine.api.options import Offload


@dataclass(frozen=True, slots=True)
class SlowPasses:
    """Of a model of which the processor computes a part, beside others that a GPU computes alone."""

    most_tokens: int
    """Prompt tokens of a pass."""
    few_tokens: int | None = None
    """As that of `SchedulerConfig`."""
    long_from: int | None = None
    """Chunks of so many tokens and more take about as long whatever their length, and their pass may be left
    half-way; None: there are none such."""


TICK_FACTOR = 1.8
"""Mean tick while prompts are read beside rows, in ticks without prefill, where nobody asks for another: rows
keep half of their pace and a little to spare."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits and shares; milliseconds and seconds where a name says so."""

    max_prefill_tokens: int = 512
    """Tokens read per tick while nobody decodes."""
    min_prefill_tokens: int = 4
    """Tokens read per tick in any case, so that a prompt always makes progress."""
    tick_factor: float = TICK_FACTOR
    """Mean tick while prompts are read beside rows, in ticks without prefill; the longest but for this:"""
    tick_extra_ms: float = 0.0
    """A single tick may be this much longer than one without prefill; others then read nothing instead."""
    fill_passes: bool = False
    """Chunks are trimmed to the shapes of `engine.scheduler.buckets`."""
    starve_s: float = 0.5
    """A prompt that was not read for this long gets its fair share beside the focused one."""
    min_stay_s: float = 2.0
    """A sequence that has just got its blocks keeps them this long against a focused one that waits."""
    offload: Offload = Offload.AUTO
    """What becomes of KV that is evicted."""
    host_kv_bytes: int = 0
    """Host memory that evicted KV of each model may take."""
    few_tokens: int | None = None
    """Size up to which passes are quick; chunks beside decode rows are trimmed to it."""
    max_sequences: int = 64
    """Sequences that run at once, of all models."""
    max_queue: int = 1024
    """Requests that may wait."""
    head_start_s: float = 10.0
    """A higher priority queues as if it had come this much earlier; so nobody waits for ever."""
    reserve: float = 0.02
    """Part of the KV that stays free at an admission, for the growth of those that run."""
    return_reserve: float = 0.1
    """The same for a preempted sequence: larger, so that it does not come back to be preempted."""
    speculation: bool = True
    """Whether tokens are drafted ahead of the model where that is expected to pay."""
    debug: bool = False
    """Check every invariant in every tick."""
