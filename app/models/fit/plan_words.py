"""Who makes room for a model, and where models are, in words."""

from pathlib import Path
from typing import TYPE_CHECKING

from app.models.builtin import model_title
from app.models.fit.fit_words import speed_text
from app.settings.words import age_text, size_text

if TYPE_CHECKING:
    from engine import EngineStats, LoadPlan, ModelStats, PlannedRelease

PAUSED = "paused"
"""State of a model that was put aside."""


def plan_text(plan: "LoadPlan") -> str:
    """Such as `Qwen3 8B pauses (4.7 GB), about 2 s`."""
    parts = [_release_text(release) for release in plan.releases]
    seconds = _seconds(plan)
    return ", ".join([" and ".join(parts), seconds] if seconds else [" and ".join(parts)])


def _release_text(release: "PlannedRelease") -> str:
    from engine import Release

    does = "pauses" if release.how is Release.PAUSE else "is unloaded"
    return f"{model_title(release.path)} {does} ({size_text(release.nbytes)})"


def placement_text(plan: "LoadPlan") -> str:
    """What of it the GPU does not hold, and how fast it will be; "" where it holds all."""
    speed = speed_text(plan.tok_s)
    return f"{plan.placement}: {speed}" if plan.placement and speed else plan.placement


def comes_back_text(plan: "LoadPlan") -> str:
    """What becomes of those that make room."""
    from engine import Release

    if all(release.how is Release.PAUSE for release in plan.releases):
        return "It waits in the computer's memory and comes back with its next message."
    return "Its file is read again with its next message."


def _seconds(plan: "LoadPlan") -> str:
    """Together with the load; nothing where no speed is known yet."""
    if plan.seconds is None:
        return ""
    seconds = plan.seconds + sum(release.seconds for release in plan.releases)
    return f"about {seconds:.0f} s" if seconds >= 1 else "under a second"


def resident_states(stats: "EngineStats | None", now: float) -> dict[Path, str]:
    """Where each model is that was loaded at monotonic clock `now`: `loaded`, `idle 5 min` or `paused`."""
    models = stats.models if stats is not None else ()
    return {Path(model.path): _state(model, now) for model in models}


def _state(model: "ModelStats", now: float) -> str:
    from engine import ModelState

    if model.state is ModelState.PAUSED:
        return PAUSED
    if model.idle_since is None or now - model.idle_since < 60:
        return "loaded"
    return f"idle {age_text(now - model.idle_since)}"
