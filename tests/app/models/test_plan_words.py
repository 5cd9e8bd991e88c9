"""Plans and states in words."""

from dataclasses import replace
from pathlib import Path

from app.models.fit.plan_words import comes_back_text, placement_text, plan_text, resident_states
from engine import LoadPlan, ModelState, ModelStats, PlannedRelease, Release
from tests.support.fakes import STATS

QWEN = PlannedRelease(1, "qwen", "/m/Qwen3 8B.gguf", 4_700_000_000, Release.PAUSE, 0.6)
GEMMA = PlannedRelease(2, "gemma", "/m/Gemma 3.gguf", 800_000_000, Release.UNLOAD, 0.0)
PLAN = LoadPlan("new", 5_000_000_000, 1_000_000_000, (QWEN,), 1.3)


def test_a_plan_is_one_sentence():
    assert plan_text(PLAN) == "Qwen3 8B pauses (4.7 GB), about 2 s"
    both = replace(PLAN, releases=(QWEN, GEMMA), seconds=None)
    assert plan_text(both) == "Qwen3 8B pauses (4.7 GB) and Gemma 3 is unloaded (800 MB)"
    assert plan_text(replace(PLAN, releases=(GEMMA,), seconds=0.3)) == (
        "Gemma 3 is unloaded (800 MB), under a second"
    )


def test_it_says_what_the_processor_computes():
    assert placement_text(PLAN) == ""
    some = "28 of 36 layers on the GPU, 8 on the processor"
    assert placement_text(replace(PLAN, placement=some, tok_s=12.3)) == f"{some}: about 12 tok/s"
    assert placement_text(replace(PLAN, placement=some)) == some


def test_it_says_where_a_model_waits():
    assert "in the computer's memory" in comes_back_text(PLAN)
    assert "read again" in comes_back_text(replace(PLAN, releases=(GEMMA,)))


def test_states_of_models():
    def model(path: str, **more) -> ModelStats:
        return ModelStats(path, path, 1, 1, 1, **more)

    models = (
        model("works"),
        model("new", idle_since=941.0),
        model("idle", idle_since=700.0),
        model("aside", idle_since=100.0, state=ModelState.PAUSED),
    )
    states = resident_states(replace(STATS, models=models), 1000.0)
    assert states == {
        Path("works"): "loaded",
        Path("new"): "loaded",
        Path("idle"): "idle 5 min",
        Path("aside"): "paused",
    }
    assert resident_states(None, 0.0) == {}
