"""A fault in a pass ends exactly its victim; the others' texts are those of a clean run."""

from pathlib import Path

import pytest
import torch

from engine.api.request import FinishReason, SamplingParams
from engine.core.figures import stats_collector
from engine.core.recovery.pass_recovery import _SMALLEST_CHUNK
from engine.scheduler.plan import ModelBatch
from kernels.reference import sampler
from tests.support.fault_bench import CHUNK, SUBJECTS, VICTIM, FaultBench, labels, read


def out_of_memory() -> Exception:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.fixture(scope="module")
def shared(small_model: Path):
    bench = FaultBench(small_model)
    yield bench
    bench.engine.close()


@pytest.fixture
def bench(shared: FaultBench):
    shared.tap()
    yield shared
    shared.tap()
    shared.check_idle()


def ended(victim, *words: str) -> None:
    _, end = read(victim)
    assert end.reason is FinishReason.ERROR
    for word in words:
        assert word in (end.error or ""), end.error


@pytest.mark.parametrize("at", [1, 2, 5, 6])
def test_a_fault_that_does_not_come_back_costs_nobody_anything(bench: FaultBench, at: int, caplog):
    tap = bench.tap()

    def once(batch: ModelBatch) -> None:
        if len(tap.passes) == at:
            raise RuntimeError("a cosmic ray")

    tap.before = once
    bench.check_others(bench.together(*map(bench.request, SUBJECTS)))
    assert "a cosmic ray" in caplog.text


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_who_makes_every_pass_fail_ends_alone(bench: FaultBench, phase: str):
    tap = bench.tap()

    def presence(batch: ModelBatch) -> None:
        rows = [s.request.label for s in batch.decode]
        if VICTIM in (rows if phase == "decode" else labels(batch)):
            raise RuntimeError(f"the kernel met {VICTIM}")

    tap.before = presence
    others, victim = bench.everybody()
    ended(victim, "the model's step failed", "RuntimeError", f"met {VICTIM}")
    bench.check_others(others)


def test_two_victims_are_both_found(bench: FaultBench):
    tap = bench.tap()

    def presence(batch: ModelBatch) -> None:
        if {VICTIM, SUBJECTS[1]} & set(labels(batch)):
            raise RuntimeError("met one of them")

    tap.before = presence
    others, victim = bench.everybody()
    ended(victim, "met one of them")
    ended(others.pop(1), "met one of them")
    bench.check_others(others)


def test_sequences_that_fail_only_together_run_apart(bench: FaultBench):
    tap = bench.tap()

    def crowd(batch: ModelBatch) -> None:
        if len(labels(batch)) > 2:
            raise RuntimeError("too many")

    tap.before = crowd
    bench.check_others(bench.together(*map(bench.request, SUBJECTS)))


def test_the_passes_of_a_recovery_are_bounded(bench: FaultBench):
    tap = bench.tap()

    def broken(batch: ModelBatch) -> None:
        raise RuntimeError("always")

    tap.before = broken
    others, victim = bench.everybody()
    for generation in [*others, victim]:
        ended(generation, "always")
    assert len(tap.passes) <= 1 + 2 * 5


def test_a_failure_after_the_pass_has_written_its_kv(bench: FaultBench):
    tap = bench.tap()
    failed: list[int] = []

    def late(batch: ModelBatch, sampled) -> None:
        if len(tap.passes) % 4 == 0:
            failed.append(len(tap.passes))
            raise RuntimeError("lost on the way back")

    tap.after = late
    bench.check_others(bench.together(*map(bench.request, SUBJECTS)))
    assert len(failed) > 3


def test_without_memory_chunks_become_smaller(bench: FaultBench):
    expected = bench.ids(bench.submit(VICTIM, long=True))
    tap = bench.tap()
    bench.forget_prefixes()

    def small_device(batch: ModelBatch) -> None:
        if sum(chunk.length for chunk in batch.prefill) > CHUNK // 2:
            raise out_of_memory()

    tap.before = small_device
    assert bench.ids(bench.submit(VICTIM, long=True)) == expected
    lengths = [batch.prefill[0].length for batch in tap.passes if batch.prefill]
    assert lengths[:4] == [CHUNK, CHUNK, CHUNK // 2, CHUNK // 2]
    assert len(lengths) > 4 and max(lengths[4:]) <= CHUNK // 2, "the next are as large again"
    bench.check_others(bench.together(*map(bench.request, SUBJECTS)))


def test_who_finds_no_memory_however_small_the_chunk_ends_alone(bench: FaultBench):
    tap = bench.tap()

    def tiny_device(batch: ModelBatch) -> None:
        if VICTIM in labels(batch):
            raise out_of_memory()

    tap.before = tiny_device
    others, victim = bench.everybody(long=True)
    ended(victim, "no memory for this conversation", "2.00 GiB", "close other programs")
    bench.check_others(others)
    lone = [batch.prefill[0].length for batch in tap.passes if labels(batch) == [VICTIM]]
    assert min(lone) <= _SMALLEST_CHUNK


def test_a_row_of_nan_ends_its_sequence(bench: FaultBench, monkeypatch):
    tap = bench.tap()
    decoder = tap.real.decoder
    real, rows = decoder.forward, []

    def noted(batch: ModelBatch) -> None:
        rows[:] = [label == VICTIM for label in labels(batch)]

    def poisoned(ids, layouts, kv, logit_rows):
        logits = real(ids, layouts, kv, logit_rows)
        if layouts[0].num_decode == len(rows) and True in rows:
            logits[rows.index(True)] = float("nan")
        return logits

    tap.before = noted
    monkeypatch.setattr(decoder, "forward", poisoned)
    others, victim = bench.everybody()
    ended(victim, "not numbers")
    bench.check_others(others)


@pytest.mark.parametrize("alone", [True, False])
def test_a_sampler_that_raises_ends_its_row(bench: FaultBench, monkeypatch, alone: bool):
    real = sampler.sample

    def broken(logits, batch):
        if bool((batch.temperature == 1.25).any()):
            raise ValueError("odd temperature")
        return real(logits, batch)

    monkeypatch.setattr("engine.runner.sampler.sample", broken)
    request = bench.request(VICTIM)
    hot = type(request)(
        request.prompt_ids, SamplingParams(temperature=1.25, seed=3), 20, ignore_eog=True, label=VICTIM
    )
    *others, victim = bench.together(*([] if alone else map(bench.request, SUBJECTS)), hot)
    ended(victim, "sampling failed", "odd temperature")
    bench.check_others(others)


def test_a_device_without_memory_in_the_sampler_is_no_rows_fault(bench: FaultBench, monkeypatch):
    real, calls = sampler.sample, []

    def short(logits, batch):
        calls.append(len(logits))
        if len(calls) == 6:
            raise out_of_memory()
        return real(logits, batch)

    monkeypatch.setattr("engine.runner.sampler.sample", short)
    bench.check_others(bench.together(*map(bench.request, SUBJECTS)))
    assert len(calls) > 6


def test_memory_that_cannot_be_given_back_ends_nobody(bench: FaultBench, monkeypatch, caplog):
    tap = bench.tap()

    def stuck(blocks: int) -> None:
        raise RuntimeError("cuMemUnmap failed with CUDA error 1")

    monkeypatch.setattr(tap.real, "trim_kv", stuck, raising=False)
    monkeypatch.setattr(stats_collector, "_INTERVAL", 0.0)  # as often memory is fitted
    bench.check_others(bench.together(*map(bench.request, SUBJECTS)))
    assert "cuMemUnmap" in caplog.text
