"""Eight chats in half the KV that they need: nobody fails, and every text is that of a run with room."""

import time
from pathlib import Path

import pytest

from engine.api.generation import Generation
from engine.api.request import FinishReason, Request, SamplingParams
from engine.api.stats import SequenceState
from engine.engine import Engine
from engine.runner.eager_runner import EagerRunner
from tests.support.small_model import KV_BYTES

TABS, PROMPT, NEW = 8, 700, 250
SENTENCES = "The river runs past the old mill and the town. People come in spring to see the water rise. "


def answers(path: Path, offload: str, tokens: int | None) -> tuple[list[tuple[int, ...]], dict[str, float]]:
    """Ids of every chat's greedy answer with KV for `tokens` tokens, and what was seen meanwhile."""
    budget = None if tokens is None else tokens * KV_BYTES
    with Engine(
        device="cpu",
        weight_dtype="float32",
        kv_dtype="float32",
        kv_budget_bytes=budget,
        kv_offload=offload,
        host_kv_bytes=budget or 0,
        debug=True,
    ) as engine:
        model = engine.load(path)
        assert model.info.kv_bytes_per_token == KV_BYTES
        ids = model.tokenizer.encode(SENTENCES * 100)
        greedy = SamplingParams(temperature=0.0)
        running = [
            model.submit(
                Request(tuple(ids[7 * i : 7 * i + PROMPT]), greedy, max_tokens=NEW + 10 * i, ignore_eog=True)
            )
            for i in range(TABS)
        ]
        seen = watch(engine, running)
        results = []
        for generation in running:
            assert generation.finished is not None
            assert generation.finished.reason is FinishReason.LENGTH, generation.finished.error
            results.append(tuple(i for event in generation.poll() for i in getattr(event, "token_ids", ())))
        deadline = time.monotonic() + 60
        while engine.stats().kv_bytes_used and time.monotonic() < deadline:
            time.sleep(0.01)
        assert engine.stats().kv_bytes_used == 0
        return results, seen | {"preemptions": engine.stats().preemptions}


def watch(engine: Engine, running: list[Generation]) -> dict[str, float]:
    seen = {"host": 0.0, "paused": 0.0}
    for generation in running:
        while generation.finished is None:
            stats = engine.stats()
            seen["host"] = max(seen["host"], stats.kv_bytes_host)
            for one in stats.sequences:
                if one.state is SequenceState.PAUSED:
                    assert "context memory is full" in one.note
                    seen["paused"] = max(seen["paused"], 1)
            with generation.stream._arrived:
                generation.stream._arrived.wait(0.02)
    # What was put aside stays known when all have ended.
    seen["host"] = max(seen["host"], engine.stats().kv_bytes_host)
    return seen


@pytest.fixture(scope="module")
def uncontended(small_model: Path) -> list[tuple[int, ...]]:
    return answers(small_model, "never", None)[0]


@pytest.fixture
def loaded(monkeypatch) -> list[int]:
    """Blocks that came back from host memory, pass by pass."""
    counts: list[int] = []
    original = EagerRunner.reload_blocks

    def load(runner: EagerRunner, moves: list[tuple[int, int, int]]) -> None:
        counts.append(len(moves))
        original(runner, moves)

    monkeypatch.setattr(EagerRunner, "reload_blocks", load)
    return counts


@pytest.mark.parametrize(("offload", "shares"), [("never", (0.5, 0.4, 0.35)), ("always", (0.4, 0.35, 0.3))])
def test_eight_chats_in_half_the_kv_finish_with_the_texts_of_an_uncontended_run(
    offload, shares, uncontended, small_model, loaded
):
    need = sum(PROMPT + NEW + 10 * i for i in range(TABS))
    gave_way = False
    for share in shares:
        texts, seen = answers(small_model, offload, int(need * share))
        assert texts == uncontended
        gave_way |= seen["preemptions"] >= 1
        assert offload == "always" or not seen["host"]
        # Whether somebody gives way, and comes back for what went, depends on who runs when.
        if gave_way and (offload == "never" or sum(loaded)):
            break
    assert gave_way, "nobody gave way to anybody: the KV was no pressure"
    assert (seen["host"] > 0) == (offload == "always")
    assert offload == "never" or sum(loaded) > 0, "no evicted block was needed again: copied for nothing"
