"""Figures for Prometheus, by the names that dashboards for other servers know, and our own for the rest."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine import EngineStats, Finished, SequenceState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Stats = Callable[[], EngineStats | None]
"""The engine's snapshot; None before there is an engine."""
_FIRST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5)
_WHOLE = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """Counts what requests were and cost; the engine's own figures are read when somebody asks."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._registry = CollectorRegistry()
        self._registry.register(_EngineFigures(stats))
        self._first = self._histogram("vllm:time_to_first_token_seconds", "Arrival to first token", _FIRST)
        self._gap = self._histogram("vllm:inter_token_latency_seconds", "Between pieces of an answer", _GAPS)
        self._whole = self._histogram("vllm:e2e_request_latency_seconds", "Arrival to end", _WHOLE)
        self._queue = self._histogram("vllm:request_queue_time_seconds", "Submit to first tick", _FIRST)
        self._prompt = self._counter("vllm:prompt_tokens", "Prompt tokens of requests that ended")
        self._generated = self._counter("vllm:generation_tokens", "Tokens that were generated")
        self._queries = self._counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the cache")
        self._hits = self._counter("vllm:prefix_cache_hits", "Prompt tokens found there")
        self._ended = Counter(
            "vllm:request_success", "Answers by how they ended", ["finished_reason"], registry=self._registry
        )
        self._refused = Counter(
            "tui_chat:requests_refused", "Requests that were not served", ["status"], registry=self._registry
        )

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, buckets=buckets, registry=self._registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, registry=self._registry)

    def first_token(self, seconds: float) -> None:
        """An answer's first token came so long after its request."""
        self._first.observe(seconds)

    def gap(self, seconds: float) -> None:
        """The next piece of an answer came so long after the one before."""
        self._gap.observe(seconds)

    def tokens(self, count: int) -> None:
        """So many tokens of answers came."""
        self._generated.inc(count)

    def cancelled(self) -> None:
        """Nobody waits for an answer any more."""
        self._ended.labels("abort").inc()

    def ended(self, finished: Finished, reason: str, seconds: float) -> None:
        """An answer ended, so long after its request came."""
        self._whole.observe(seconds)
        self._queue.observe(finished.queue_ms / 1000)
        self._prompt.inc(finished.prompt_tokens)
        self._queries.inc(finished.prompt_tokens)
        self._hits.inc(finished.cached_tokens)
        self._ended.labels(reason).inc()

    def refused(self, status: int) -> None:
        """A request was not served."""
        self._refused.labels(str(status)).inc()

    @property
    def failure(self) -> str:
        """Why nothing is served until a restart, "" while something is."""
        stats = self._stats()
        return stats.failure if stats is not None else ""

    def text(self) -> bytes:
        """All figures in Prometheus's format."""
        return generate_latest(self._registry)


class _EngineFigures(Collector):
    """The engine's snapshot as figures."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats

    def describe(self) -> list[Metric]:
        """Nothing is collected to find out names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The figures of now; of several devices each one's, by its name."""
        stats = self._stats()
        if stats is None:
            return
        each = stats.parts or (stats,)
        labels = ["device"] if stats.parts else []

        def add(family: Family, figure: Callable[[EngineStats], float]) -> Family:
            for part in each:
                family.add_metric([part.device] if labels else [], figure(part))
            return family

        for name, text, figure in _GAUGES:
            yield add(GaugeMetricFamily(name, text, labels=labels), figure)
        preemptions = CounterMetricFamily(
            "vllm:num_preemptions", "Sequences that made room for others", labels=labels
        )
        yield add(preemptions, lambda part: part.preemptions)
        yield _kv_bytes(stats, each, labels)


Family = TypeVar("Family", GaugeMetricFamily, CounterMetricFamily)


def _running(stats: EngineStats) -> int:
    return sum(one.state in (SequenceState.PREFILL, SequenceState.DECODE) for one in stats.sequences)


_GAUGES: tuple[tuple[str, str, Callable[[EngineStats], float]], ...] = (
    ("vllm:num_requests_running", "Sequences that are read or written", _running),
    ("vllm:num_requests_waiting", "Sequences that wait", lambda s: len(s.sequences) - _running(s)),
    (
        *("vllm:kv_cache_usage_perc", "Share of KV memory that sequences hold"),
        lambda s: s.kv_bytes_used / s.kv_bytes_total if s.kv_bytes_total else 0.0,
    ),
    ("tui_chat:device_lost", "1 for a device that serves nothing until a restart", lambda s: bool(s.failure)),
    ("tui_chat:tick_seconds", "Smoothed duration of a tick", lambda s: s.tick_ms / 1000),
    ("tui_chat:decode_tokens_per_second", "Over the last second", lambda s: s.decode_tok_s),
    ("tui_chat:prefill_tokens_per_second", "Over the last second", lambda s: s.prefill_tok_s),
)


def _kv_bytes(stats: EngineStats, each: Sequence[EngineStats], labels: list[str]) -> GaugeMetricFamily:
    family = GaugeMetricFamily("tui_chat:kv_bytes", "KV memory by what it holds", labels=["kind", *labels])
    for part in each:
        kinds = {
            "used": part.kv_bytes_used,
            "cached": part.kv_bytes_cached,
            "free": max(0, part.kv_bytes_total - part.kv_bytes_used - part.kv_bytes_cached),
            "host": part.kv_bytes_host,
        }
        for kind, value in kinds.items():
            family.add_metric([kind, *([part.device] if labels else [])], value)
    # One folder, whatever devices there are.
    on_disk = stats.kv_disk.bytes_used if stats.kv_disk is not None else 0
    family.add_metric(["disk", *("" for _ in labels)], on_disk)
    return family
