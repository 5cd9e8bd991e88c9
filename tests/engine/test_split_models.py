"""Models of which the processor computes a part: answers, memory, plans and refusals of a whole engine.

In the place of the GPU are the processor's operations, so that all is float32 and texts are equal;
`tests/kernels/whole/test_split_models.py` has the same on the kernels.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

import engine.core.device_choice as device_choice
import engine.core.split_loader as split_loader
from engine.api.errors import EngineError
from engine.api.request import Finished, Request, SamplingParams
from engine.core import model_loader, model_moves
from engine.device import memory
from engine.device.fit_advice import LOAD_MARGIN
from engine.engine import Engine, Model
from tests.engine.test_kv_disk import disk, wait_for_saves
from tests.support.device_like import DeviceLike, float32_host
from tests.support.family_goldens import FamilyGolden
from tests.support.small_model import KV_BYTES
from tests.support.tiny_gguf import make_tiny

NEW = 16
SENTENCES = "The river runs past the old mill and the town. People come in spring to see the water rise. "


@pytest.fixture(autouse=True)
def float32(monkeypatch) -> None:
    monkeypatch.setattr(split_loader, "host_operations", float32_host)


def divided(**options: object) -> Engine:
    """An engine whose device is like a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_choice, "operations_for", lambda *_: DeviceLike())
        options = {"host_layers": 1, "kv_budget_bytes": 64 << 20, "debug": True} | options
        return Engine("cpu", **options)


@pytest.fixture(params=["dense", "experts"])
def path(request, small_model: Path, tmp_path: Path) -> Path:
    return small_model if request.param == "dense" else FamilyGolden.load("qwen3moe").write_model(tmp_path)


@pytest.fixture
def plain() -> Iterator[Engine]:
    with Engine("cpu", weight_dtype="float32", kv_dtype="float32", kv_budget_bytes=64 << 20) as engine:
        yield engine


def prompts(model: Model, *lengths: int) -> list[tuple[int, ...]]:
    vocab = model._vocab_size - 20
    return [tuple(10 + (7 * i + 13 * at * at) % vocab for at in range(n)) for i, n in enumerate(lengths)]


def answers(
    model: Model, asked: list[tuple[int, ...]], new: int = NEW
) -> list[tuple[tuple[int, ...], Finished]]:
    """Ids of the greedy answers of prompts that come together."""
    greedy = SamplingParams(temperature=0.0)
    running = [model.submit(Request(ids, greedy, max_tokens=new, ignore_eog=True)) for ids in asked]
    results = []
    for generation in running:
        events = list(generation.events())
        ids = tuple(i for event in events for i in getattr(event, "token_ids", ()))
        assert isinstance(events[-1], Finished) and events[-1].error is None, events[-1]
        results.append((ids, events[-1]))
    return results


def test_answers_are_those_of_the_whole_model(path, plain):
    whole = plain.load(path)
    asked = prompts(whole, 5, 70, 33)
    expected = [ids for ids, _ in answers(whole, asked)]
    with divided(max_prefill_tokens=40) as engine:
        model = engine.load(path)
        assert "on the processor" in model.info.placement and model.info.host_bytes
        assert [ids for ids, _ in answers(model, asked)] == expected
        ((again, end),) = answers(model, asked[1:2])
        assert again == expected[1] and end.cached_tokens == 64


@pytest.mark.parametrize("offload", ["never", "always"])
def test_answers_that_were_preempted(offload, small_model, plain):
    whole = plain.load(small_model)
    asked, new = prompts(whole, 90, 90, 90), 90
    expected = [ids for ids, _ in answers(whole, asked, new)]
    # Room for any one of them, and not for two. The device has one layer of two: half of a token's KV.
    budget = 300 * KV_BYTES // 2
    with divided(kv_budget_bytes=budget, kv_offload=offload, host_kv_bytes=1 << 24) as engine:
        model = engine.load(small_model)
        assert model.info.kv_bytes_per_token == KV_BYTES // 2
        assert [ids for ids, _ in answers(model, asked, new)] == expected
        assert engine.stats().preemptions


def test_drafts_are_verified(small_model, plain):
    ids = tuple(plain.load(small_model).tokenizer.encode(SENTENCES * 2))
    with divided(speculation="off") as engine, divided() as drafting:
        plain_text = answers(engine.load(small_model), [ids], 40)
        drafted = answers(drafting.load(small_model), [ids], 40)
    assert drafted[0][0] == plain_text[0][0]


def test_kv_is_kept_in_files_and_found_again(small_model, tmp_path):
    options = {"kv_disk_folder": tmp_path / "kv", "kv_disk_bytes": 1 << 28}
    with divided(**options) as engine:
        model = engine.load(small_model)
        asked = prompts(model, 600)
        first = answers(model, asked)
        wait_for_saves(engine, model)
        assert disk(engine).tokens_saved
    with divided(**options) as engine:
        again = answers(engine.load(small_model), asked)
        assert again[0][0] == first[0][0]
        assert disk(engine).restores == 1


def test_a_model_that_is_put_aside_comes_back(small_model):
    with divided() as engine:
        model = engine.load(small_model)
        asked = prompts(model, 40)
        expected = answers(model, asked)[0][0]
        engine.pause_model(model.id)
        assert answers(model, asked)[0][0] == expected


@pytest.fixture
def free(monkeypatch):
    """Sets what the device and the host have free."""

    def set_free(device: int, host: int) -> None:
        for module in (model_loader, model_moves, memory):
            monkeypatch.setattr(module, "free_bytes", lambda _device: device)
        monkeypatch.setattr(split_loader, "free_host_bytes", lambda: host)

    return set_free


@pytest.fixture(params=["dense", "experts"])
def quantised(request, tmp_path: Path) -> Path:
    """Weights that no device widens."""
    if request.param == "experts":
        return FamilyGolden.load("qwen3moe-q8_0").write_model(tmp_path)
    sizes = {"width": 64, "ffn": 128, "heads": 2, "kv_heads": 1, "head_dim": 32}
    return make_tiny(tmp_path / "tiny.gguf", "qwen3", layers=4, quant="Q8_0", **sizes)


def needed(path: Path) -> int:
    """What the whole model's weights take of the device."""
    with divided(host_layers="never") as engine:
        return engine.plan_load(path).needed_bytes - LOAD_MARGIN


def test_what_does_not_fit_is_divided_and_said_before(quantised, free):
    whole = needed(quantised)
    with divided(host_layers="auto") as engine:
        free(LOAD_MARGIN + 2 * whole, 1 << 40)
        assert not engine.plan_load(quantised).placement
        free(LOAD_MARGIN + 3 * whole // 4, 1 << 40)
        plan = engine.plan_load(quantised)
        assert plan.refusal is None and "on the processor" in plan.placement
        assert plan.tok_s is not None and plan.tok_s > 0
        model = engine.load(quantised)
        assert model.info.placement == plan.placement
        assert model.info.weight_bytes < 3 * whole // 4
        assert len(answers(model, prompts(model, 9), 2)[0][0]) == 2
        assert engine.stats().models[0].placement == plan.placement


def test_never_means_never(quantised, free):
    whole = needed(quantised)
    with divided(host_layers="never") as engine:
        free(LOAD_MARGIN + whole // 8, 1 << 40)
        assert engine.plan_load(quantised).refusal
        with pytest.raises(EngineError, match="its weights need"):
            engine.load(quantised)


def test_too_little_host_memory_is_one_refusal(quantised, free):
    whole = needed(quantised)
    with divided(host_layers="auto") as engine:
        free(LOAD_MARGIN + 3 * whole // 4, LOAD_MARGIN)
        for ask in (engine.plan_load, engine.load):
            with pytest.raises(EngineError, match=r"go to the GPU.*computer's memory.*what would help"):
                ask(quantised)


@pytest.mark.parametrize("wanted", ["some", -1])
def test_bad_options(wanted):
    with pytest.raises(EngineError, match="host_layers"):
        Engine("cpu", host_layers=wanted)


def test_batch_independent_answers_need_the_gpu_alone():
    with pytest.raises(EngineError, match="host_layers: 3 with batch_independent"):
        Engine("cpu", host_layers=3, batch_independent=True)
