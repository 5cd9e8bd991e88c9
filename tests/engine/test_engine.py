"""The facade end to end on tiny models: joins, cancels, refusals, failures that stay in one tab."""

import asyncio
import math
import threading
import time

import pytest
import torch

from engine.api.errors import EngineClosedError, EngineError, ModelFileError, RequestError
from engine.api.request import Finished, FinishReason, Request, SamplingParams, TextDelta
from engine.api.stats import SequenceState
from engine.core import output_processor
from engine.core.figures import stats_collector
from engine.core.model_loader import ResidentModel
from engine.engine import Engine, Model
from tests.support.tiny_gguf import make_tiny

GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "qwen3": make_tiny(folder / "one.gguf", "qwen3", quant="Q8_0", seed=1),
        "llama": make_tiny(folder / "two.gguf", "llama", quant="Q4_K_M", seed=2),
    }


@pytest.fixture
def engine():
    with Engine("cpu", weight_dtype="float32", kv_budget_bytes=64 << 20, debug=True) as engine:
        yield engine


@pytest.fixture
def model(engine: Engine, files) -> Model:
    return engine.load(files["qwen3"])


def request(prompt=range(20, 60), tokens: int = 16, sampling: SamplingParams = GREEDY, **more) -> Request:
    return Request(tuple(prompt), sampling, max_tokens=tokens, ignore_eog=True, **more)


def resident(model: Model) -> ResidentModel:
    return model._engine._loop.models.get(model._key)


def answer_ids(generation) -> list[int]:
    ids: list[int] = []
    for event in generation.events():
        if isinstance(event, TextDelta):
            ids += event.token_ids
    return ids


def wait_until(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)


def test_a_request_streams_and_ends_with_its_counts(model: Model):
    generation = model.submit(request(tokens=12))
    events = list(generation.events())
    end = events[-1]
    assert isinstance(end, Finished)
    assert (end.reason, end.prompt_tokens, end.completion_tokens) == (FinishReason.LENGTH, 40, 12)
    assert end.queue_ms >= 0 and end.ttft_ms is not None and end.ttft_ms >= end.queue_ms
    assert end.tok_s > 0
    ids = [i for e in events[:-1] for i in e.token_ids]
    assert len(ids) == 12
    assert "".join(e.text for e in events[:-1]) == model.tokenizer.decode(ids)


def test_the_async_iterator_gives_the_same(model: Model):
    async def collect() -> list:
        return [event async for event in model.submit(request())]

    first, second = asyncio.run(collect()), list(model.submit(request()).events())
    assert [e.token_ids for e in first[:-1]] == [e.token_ids for e in second[:-1]]


def test_logits_agree_with_the_greedy_answer(model: Model):
    prompt = list(range(20, 60))
    ids = answer_ids(model.submit(request(prompt, tokens=6)))
    logits = model.logits(prompt + ids)
    assert logits.shape == (46, resident(model).config.vocab_size)
    assert logits[39:45].argmax(-1).tolist() == ids


def test_stop_strings_and_eog_end_an_answer(model: Model):
    ids = answer_ids(model.submit(request(tokens=24)))
    text = model.tokenizer.decode(ids)
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    got, end = model.submit(request(tokens=24, stop=(stop,))).result(60)
    assert end.reason is FinishReason.STOP_STRING and end.stop_string == stop
    assert got == text[: text.index(stop)]
    eog = next(iter(model.tokenizer.eog_ids))
    forced = SamplingParams(temperature=0.0, logit_bias={eog: 1e4})
    got, end = model.submit(Request((20, 21), forced)).result(60)
    assert (got, end.reason, end.completion_tokens) == ("", FinishReason.STOP, 0)


@pytest.mark.parametrize("bias", [-1e300, -1.0e9, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1e-6, 0.8])
def test_a_bias_below_float32_forbids_and_one_of_all_tokens_is_refused(model: Model, bias, temperature):
    vocab = model._vocab_size
    allowed = SamplingParams(temperature, seed=1, logit_bias={i: bias for i in range(vocab) if i != 77})
    assert answer_ids(model.submit(request(tokens=3, sampling=allowed))) == [77] * 3
    nothing = SamplingParams(temperature, logit_bias=dict.fromkeys(range(vocab + 5), bias))
    with pytest.raises(RequestError, match=f"logit_bias: forbids all {vocab} tokens.*leave at least one"):
        model.submit(request(tokens=3, sampling=nothing))
    alike = SamplingParams(temperature, seed=1, logit_bias=dict.fromkeys(range(vocab), -1e6))
    assert len(answer_ids(model.submit(request(tokens=3, sampling=alike)))) == 3


def test_an_answer_holds_no_token_that_the_file_suppresses(model: Model, monkeypatch):
    best = answer_ids(model.submit(request(tokens=1)))[0]
    monkeypatch.setattr(model.tokenizer, "suppressed_ids", frozenset({best}))
    wanted = SamplingParams(temperature=0.0, logit_bias={best: 1e4, 77: 1e3})
    assert answer_ids(model.submit(request(tokens=3, sampling=wanted))) == [77] * 3
    assert best not in answer_ids(model.submit(request(tokens=3)))


def test_the_same_seed_gives_the_same_text_whoever_else_runs(model: Model):
    sampling = SamplingParams(temperature=1.0, seed=77)
    alone = answer_ids(model.submit(request(sampling=sampling)))
    others = [model.submit(request(range(5 + i, 50 + i), 30, SamplingParams(seed=i))) for i in range(5)]
    assert answer_ids(model.submit(request(sampling=sampling))) == alone
    for other in others:
        other.result(60)


def test_requests_that_cannot_fit_are_refused_with_numbers(model: Model):
    with pytest.raises(RequestError, match=r"512"):
        model.submit(request([20] * 500, tokens=100))
    with pytest.raises(RequestError, match="99999"):
        model.submit(request([20, 99999]))
    with pytest.raises(RequestError, match="-1"):
        model.submit(request([20, -1]))


def test_cancel_at_every_phase_frees_everything(engine: Engine, model: Model):
    before = model.submit(request(tokens=400))
    before.cancel()
    assert before.result(60)[1].reason is FinishReason.CANCELLED
    reading = model.submit(request([i % 200 + 20 for i in range(400)], tokens=50))
    wait_until(
        lambda: any(s.state is not SequenceState.QUEUED for s in engine.stats().sequences) or reading.finished
    )
    reading.cancel()
    assert reading.result(60)[1].reason in (FinishReason.CANCELLED, FinishReason.LENGTH)
    decoding = model.submit(request(tokens=450))
    next(iter(decoding.events()))
    decoding.cancel()
    decoding.cancel()
    end = decoding.result(60)[1]
    assert end.reason is FinishReason.CANCELLED and 1 <= end.completion_tokens < 450
    wait_until(lambda: engine.stats().blocks_used == 0 and not engine.stats().sequences)


def test_a_failing_step_ends_its_sequences_and_the_engine_serves_the_next(model: Model, monkeypatch):
    expected = answer_ids(model.submit(request()))
    runner = resident(model).runner
    real = runner.decoder.forward

    def broken(*args, **kwargs):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(runner.decoder, "forward", broken)
    victim = model.submit(request()).result(60)[1]
    assert victim.reason is FinishReason.ERROR and "out of luck" in (victim.error or "")
    monkeypatch.setattr(runner.decoder, "forward", real)
    assert answer_ids(model.submit(request())) == expected


def test_nan_logits_end_one_sequence_and_spare_the_others(model: Model, monkeypatch):
    expected = answer_ids(model.submit(request(tokens=20)))
    real = resident(model).runner.decoder.forward

    def poisoned(ids, layouts, kv, rows):
        logits = real(ids, layouts, kv, rows)
        if len(layouts[0].query_lens) >= 2 and layouts[0].num_decode >= 2:
            logits[1] = float("nan")
        return logits

    keeper = model.submit(request(tokens=20))
    next(iter(keeper.events()))
    monkeypatch.setattr(resident(model).runner.decoder, "forward", poisoned)
    monkeypatch.setattr(resident(model).runner, "recorded", None)
    victim = model.submit(request(range(70, 110), tokens=400)).result(60)[1]
    assert victim.reason is FinishReason.ERROR and "not numbers" in (victim.error or "")
    keeper.result(60)
    monkeypatch.undo()
    assert answer_ids(model.submit(request(tokens=20))) == expected
    assert keeper.finished.reason is FinishReason.LENGTH


def test_a_failure_outside_a_step_ends_what_runs_and_starts_over(engine: Engine, model: Model, monkeypatch):
    expected = answer_ids(model.submit(request()))
    scheduler = engine._loop.scheduler

    def broken(*args, **kwargs):
        raise RuntimeError("the bookkeeping are wet")

    monkeypatch.setattr(scheduler, "commit", broken)
    victim = model.submit(request()).result(60)[1]
    assert victim.reason is FinishReason.ERROR and "bookkeeping are wet" in (victim.error or "")
    assert engine._loop.scheduler is not scheduler
    assert answer_ids(model.submit(request())) == expected


def test_a_broken_consumer_does_not_stop_others(model: Model):
    def broken() -> None:
        raise RuntimeError("gone")

    bad = model.submit(request(tokens=30))
    bad.set_listener(lambda: None)
    bad._listener = broken
    good = model.submit(request(tokens=30))
    assert good.result(60)[1].reason is FinishReason.LENGTH
    assert bad.result(60)[1].reason is FinishReason.LENGTH


def test_two_models_share_ticks_and_budget(engine: Engine, files):
    one, two = engine.load(files["qwen3"]), engine.load(files["llama"])
    alone = [answer_ids(m.submit(request(tokens=20))) for m in (one, two)]
    together = [m.submit(request(tokens=20)) for m in (one, two)]
    assert [answer_ids(g) for g in together] == alone
    assert {m.name for m in engine.stats().models} == {"one", "two"}
    running = one.submit(request(tokens=450))
    next(iter(running.events()))
    one.unload()
    assert running.result(60)[1].reason is FinishReason.CANCELLED
    assert answer_ids(two.submit(request(tokens=20))) == alone[1]
    with pytest.raises(EngineClosedError, match="was unloaded"):
        one.submit(request())


def test_more_than_the_kv_holds_waits_and_finishes(files):
    with Engine("cpu", weight_dtype="float32", kv_budget_bytes=64 << 20, debug=True) as roomy:
        model = roomy.load(files["qwen3"])
        prompts = [[20 + i, *range(30, 100)] for i in range(6)]
        expected = [answer_ids(model.submit(request(p, tokens=60))) for p in prompts]
        block_bytes = model.info.kv_bytes_per_token * 32
    exact = {"weight_dtype": "float32", "kv_dtype": "float32"}
    with Engine("cpu", kv_budget_bytes=block_bytes * 11, debug=True, **exact) as tight:
        model = tight.load(files["qwen3"])
        assert model.max_tokens == 11 * 32 < model.context_length
        generations = [model.submit(request(p, tokens=60)) for p in prompts]
        assert [answer_ids(g) for g in generations] == expected
        assert all(g.finished.reason is FinishReason.LENGTH for g in generations)


def test_many_threads_submit_and_cancel(model: Model):
    ends: list[FinishReason] = []

    def client(seed: int) -> None:
        for i in range(4):
            generation = model.submit(request(range(20 + seed, 40 + seed), tokens=12 + i))
            if (seed + i) % 3 == 0:
                generation.cancel()
            ends.append(generation.result(60)[1].reason)

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ends) == 24
    assert set(ends) <= {FinishReason.LENGTH, FinishReason.CANCELLED}


def test_closing_ends_everything_and_refuses_more(files):
    engine = Engine("cpu", weight_dtype="float32", kv_budget_bytes=64 << 20)
    model = engine.load(files["qwen3"])
    running = model.submit(request(tokens=450))
    engine.close()
    assert running.result(60)[1].reason is FinishReason.CANCELLED
    with pytest.raises(EngineClosedError):
        model.submit(request())
    with pytest.raises(EngineClosedError):
        engine.load(files["qwen3"])


def test_bad_options_and_files_are_named(engine: Engine, tmp_path):
    with pytest.raises(EngineError, match="weight_dtype: 'int3'"):
        Engine("cpu", weight_dtype="int3")
    with pytest.raises(EngineError, match="device: 'abacus'"):
        Engine("abacus")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\x00" * 10)
    with pytest.raises(ModelFileError, match=r"broken\.gguf"):
        engine.load(broken)
    other = make_tiny(tmp_path / "other.gguf", "qwen3", quant="F32")
    raw = other.read_bytes().replace(b"qwen3", b"quux3")
    (tmp_path / "quux.gguf").write_bytes(raw)
    with pytest.raises(ModelFileError, match=r"quux3.*llama, .*qwen2, .*qwen3"):
        engine.load(tmp_path / "quux.gguf")


def test_abandoning_a_load_leaves_nothing(engine: Engine, files):
    def stop(fraction: float, what: str) -> None:
        if fraction > 0.3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.load(files["qwen3"], progress=stop)
    assert engine.stats().models == ()


@pytest.mark.parametrize(("kv_dtype", "limit"), [("float16", 2e-3), ("bfloat16", 2e-2), ("q8_0", 3e-2)])
def test_smaller_kv_types_answer_nearly_the_same(files, kv_dtype: str, limit: float):
    prompt = list(range(20, 120))
    with Engine("cpu", weight_dtype="float32", kv_dtype=kv_dtype, kv_budget_bytes=64 << 20) as engine:
        model = engine.load(files["qwen3"])
        assert model.info.kv_dtype == kv_dtype
        ours = model.logits(prompt)
    with Engine("cpu", weight_dtype="float32", kv_budget_bytes=64 << 20) as engine:
        expected = engine.load(files["qwen3"]).logits(prompt)
    error = float((ours - expected).norm() / expected.norm())
    assert 0 < error < limit
    assert torch.isfinite(ours).all()


def test_the_speeds_of_an_idle_engine_run_out(engine: Engine, model: Model, monkeypatch):
    for module in (output_processor, stats_collector):
        monkeypatch.setattr(module, "RATE_WINDOW", 0.1)
    model.submit(request()).result(60)
    wait_until(lambda: engine.stats().decode_tok_s > 0)
    wait_until(lambda: engine.stats().decode_tok_s == 0 and engine.stats().prefill_tok_s == 0)
