"""What several engines say, as one would say it; each one's own words stay beside it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine.api.detail import DeviceUse, EngineDetail
from engine.api.stats import EngineStats, KVDiskStats

_SUMS = (
    *("kv_bytes_total", "kv_bytes_used", "kv_bytes_cached", "kv_bytes_host", "blocks_used", "blocks_cached"),
    *("rows", "prefill_tokens", "ticks", "queue_length", "decode_tok_s", "prefill_tok_s", "preemptions"),
)
_HIGHEST = ("tick_ms", "tick_limit_ms", "tick_error", "process_bytes")
"""Devices work beside each other: the longest tick is what somebody waits for. The process is one."""
_JOINED = ("device", "kernels", "kv_dtype")


def merged_stats(each: Sequence[EngineStats]) -> EngineStats:
    """Sums, with what each device says as `parts`."""
    parts = tuple(_named(stats) for stats in each)
    figures: dict[str, Any] = {name: sum(getattr(part, name) for part in parts) for name in _SUMS}
    figures |= {name: max(getattr(part, name) for part in parts) for name in _HIGHEST}
    figures |= {name: ", ".join(dict.fromkeys(getattr(part, name) for part in parts)) for name in _JOINED}
    return EngineStats(
        **figures,
        block_size=parts[0].block_size,
        sequences=tuple(one for part in parts for one in part.sequences),
        models=tuple(model for part in parts for model in part.models),
        fallbacks=tuple(dict.fromkeys(text for part in parts for text in part.fallbacks)),
        kv_disk=_disk([part.kv_disk for part in parts if part.kv_disk is not None]),
        failure="; ".join(part.failure for part in parts) if all(part.failure for part in parts) else "",
        parts=parts,
    )


def _named(stats: EngineStats) -> EngineStats:
    """With the device at every model."""
    return replace(stats, models=tuple(replace(model, device=stats.device) for model in stats.models))


def _disk(each: Sequence[KVDiskStats]) -> KVDiskStats | None:
    """All keep KV in one folder, of which each tells the size."""
    if not each:
        return None
    refusals: Counter[str] = Counter()
    for disk in each:
        refusals.update(dict(disk.refusals))
    return KVDiskStats(
        bytes_used=max(disk.bytes_used for disk in each),
        bytes_limit=max(disk.bytes_limit for disk in each),
        restores=sum(disk.restores for disk in each),
        tokens_restored=sum(disk.tokens_restored for disk in each),
        tokens_saved=sum(disk.tokens_saved for disk in each),
        refusals=tuple(refusals.items()),
        note="; ".join(dict.fromkeys(disk.note for disk in each if disk.note)),
    )


def merged_detail(each: Sequence[EngineDetail]) -> EngineDetail:
    """The pools of all devices, one after another."""
    return EngineDetail(
        merged_stats([detail.stats for detail in each]),
        tuple(replace(pool, device=detail.stats.device) for detail in each for pool in detail.pools),
        tuple(sequence for detail in each for sequence in detail.sequences),
    )


def merged_use(each: Sequence[DeviceUse]) -> DeviceUse | None:
    """Memory and power of all GPUs together; None for what a driver tells of none of them."""
    if not each:
        return None
    return DeviceUse(
        _sum([use.memory_used for use in each]),
        _sum([use.memory_total for use in each]),
        _sum([use.watts for use in each]),
        parts=tuple(each),
    )


def _sum(values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
