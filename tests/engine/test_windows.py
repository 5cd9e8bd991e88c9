"""Layers that see the newest tokens alone give back the rest: texts are those of a run that keeps all."""

from pathlib import Path

import pytest

from engine.api.generation import Generation
from engine.api.request import Request, SamplingParams
from engine.core import model_loader
from engine.core.saved_kv import kv_disk
from engine.engine import Engine
from engine.model.spec import ModelConfig
from engine.runner import model_kv
from tests.support.family_goldens import FamilyGolden

GREEDY = SamplingParams(temperature=0.0)
PROMPTS = (40, 101, 35, 45)
"""Tokens; the windows have 20, blocks 32."""
NEW = 80


@pytest.fixture(scope="module", params=["cohere2"])
def golden(request) -> FamilyGolden:
    return FamilyGolden.load(request.param)


@pytest.fixture(scope="module")
def path(golden, tmp_path_factory) -> Path:
    return golden.write_model(tmp_path_factory.mktemp("windows"))


@pytest.fixture(scope="module")
def prompts(golden) -> list[list[int]]:
    """Two begin alike."""
    tokens = golden.tokens * 4
    return [tokens[3 * (i // 2) : 3 * (i // 2) + count] for i, count in enumerate(PROMPTS)]


def open_engine(
    budget: int | None = None, offload: str = "never", chunk: int = 48, folder: Path | None = None
) -> Engine:
    return Engine(
        "cpu",
        weight_dtype="float32",
        kv_dtype="float32",
        kv_budget_bytes=budget,
        host_kv_bytes=budget or 0,
        kv_offload=offload,
        max_prefill_tokens=chunk,
        kv_disk_folder=folder,
        debug=True,
    )


def ids_of(generation: Generation) -> list[int]:
    end = generation.stream.wait_for_end(120)
    assert end is not None and end.error is None
    return [i for event in generation.poll() for i in getattr(event, "token_ids", ())]


def answers(engine: Engine, path: Path, prompts: list[list[int]]) -> list[list[int]]:
    model = engine.load(path)
    requests = [
        Request(tuple(prompt), GREEDY, max_tokens=NEW + i, ignore_eog=True)
        for i, prompt in enumerate(prompts)
    ]
    # On the engine's thread: all are there before a tick, however slow the test's own is.
    running = engine._loop.call(lambda: [model.submit(request) for request in requests])
    return [ids_of(generation) for generation in running]


@pytest.fixture(scope="module")
def expected(path, prompts) -> list[list[int]]:
    """Of an engine whose layers keep everything."""

    def none(_config: ModelConfig) -> list[int]:
        return []

    with pytest.MonkeyPatch.context() as patch, open_engine() as engine:
        patch.setattr(model_kv, "window_sizes", none)
        patch.setattr(model_loader, "window_sizes", none)
        return answers(engine, path, prompts)


def bytes_of_tokens(path: Path, tokens: int) -> int:
    with open_engine() as engine:
        return engine.load(path).info.kv_bytes_per_token * tokens


@pytest.mark.parametrize(("tokens", "offload"), [(None, "never"), (200, "never"), (200, "always")])
def test_texts_are_those_of_a_run_that_keeps_everything(tokens, offload, path, prompts, expected):
    budget = None if tokens is None else bytes_of_tokens(path, tokens)
    with open_engine(budget, offload) as engine:
        assert answers(engine, path, prompts) == expected
        assert (engine.stats().preemptions > 0) == (tokens is not None)


def test_what_windows_hold_does_not_grow_with_the_context(path, prompts):
    with open_engine() as engine:
        running = engine.load(path).submit(
            Request(tuple(prompts[1]), GREEDY, max_tokens=NEW, ignore_eog=True)
        )
        most = [0, 0]
        while running.finished is None:
            groups = engine.stats().models[0].kv_groups
            most = [max(pair) for pair in zip(most, (group.bytes_used for group in groups), strict=True)]
            with running.stream._arrived:
                running.stream._arrived.wait(0.01)
        (everything, window), sizes = most, [group.bytes_per_token for group in groups]
        assert [group.window for group in groups] == [0, 20]
        assert everything >= sizes[0] * len(prompts[1])
        # The window, a chunk of 48 and what of blocks is beyond them.
        assert 0 < window <= sizes[1] * (20 + 48 + 2 * 32)


def test_a_prompt_that_is_known_is_found_with_its_windows(path, prompts, expected):
    with open_engine() as engine:
        model = engine.load(path)
        first = model.submit(Request(tuple(prompts[1]), GREEDY, max_tokens=NEW, ignore_eog=True))
        longer = (*prompts[1], *ids_of(first))
        again = model.submit(Request(longer, GREEDY, max_tokens=1))
        assert again.result(60)[1].cached_tokens == (len(longer) - 1) // 32 * 32
        other = model.submit(Request(tuple(prompts[1]), GREEDY, max_tokens=NEW + 1, ignore_eog=True))
        assert ids_of(other) == expected[1]


@pytest.mark.parametrize("known", ["all", "prompt"])
def test_windows_come_back_from_files_where_a_request_may_go_on(
    known, path, prompts, expected, tmp_path, monkeypatch
):
    monkeypatch.setattr(kv_disk, "LEAST_TOKENS", 64)
    prompt = tuple(prompts[1])
    with open_engine(folder=tmp_path) as engine:
        model = engine.load(path)
        first = model.submit(Request(prompt, GREEDY, max_tokens=NEW, ignore_eog=True))
        longer = (*prompt, *ids_of(first))
    # A template that leaves reasoning out goes on from the prompt's end.
    asked, new = (longer, 1) if known == "all" else (prompt, NEW + 1)
    with open_engine(folder=tmp_path) as engine:
        model = engine.load(path)
        again = model.submit(Request(asked, GREEDY, max_tokens=new, ignore_eog=True))
        assert ids_of(again) == expected[1][-new:]
        assert again.finished is not None
        assert again.finished.cached_tokens == (len(asked) - 1) // 32 * 32
        blocks = engine._loop.call(lambda: engine._loop.models.get(model._key).blocks)
        engine._loop.call(lambda: blocks.check([]))
