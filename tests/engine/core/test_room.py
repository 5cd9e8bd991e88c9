"""Who makes room: idle models, the least recently used first, no more than are needed."""

import pytest

from engine.api.load_plan import Release
from engine.core.room import ModelUse, Speeds, Wanted, plan_room
from engine.device.fit_advice import LOAD_MARGIN, Holders, Need

GB = 1 << 30


def use(model_id: int, size: float, last_used: float, *, idle: bool = True) -> ModelUse:
    return ModelUse(model_id, f"model {model_id}", f"/{model_id}.gguf", int(size * GB), idle, last_used)


def plan(need: float, free: float, *models: ModelUse, answers: float = 0.0):
    wanted = Wanted(Need("new.gguf", int(need * GB), 10**9), 1 << 20, int(answers * GB))
    holders = Holders(tuple((one.name, one.nbytes) for one in models))
    return plan_room(
        wanted,
        int(free * GB) + LOAD_MARGIN,
        models,
        lambda one: (Release.PAUSE, one.nbytes / GB),
        holders,
        2.0,
    )


def test_nobody_makes_room_where_there_is_some():
    made = plan(4, 5, use(1, 3, 10.0))
    assert (made.releases, made.refusal, made.seconds) == ((), None, 2.0)


def test_the_least_recently_used_goes_first_and_who_answers_stays():
    models = use(1, 3, 30.0), use(2, 3, 10.0), use(3, 3, 5.0, idle=False), use(4, 3, 20.0)
    assert plan(4, 2, *models).model_ids == (2,)
    assert plan(7, 2, *models).model_ids == (2, 4)
    made = plan(7, 2, *models)
    assert [(one.how, one.seconds) for one in made.releases] == [(Release.PAUSE, 3.0)] * 2


def test_one_that_is_too_small_does_not_go_for_nothing():
    assert plan(4, 1, use(1, 1, 1.0), use(2, 5, 2.0)).model_ids == (2,)


def test_what_does_not_fit_is_refused_with_what_would_help():
    made = plan(9, 1, use(1, 3, 1.0), use(2, 7, 2.0, idle=False))
    assert made.releases == () and made.refusal is not None
    assert "its weights need 9.0 GiB" in made.refusal
    assert "closing model 1 (3.0 GiB) and model 2 (7.0 GiB)" in made.refusal.replace(
        "closing model 2 (7.0 GiB) and model 1 (3.0 GiB)", "closing model 1 (3.0 GiB) and model 2 (7.0 GiB)"
    )
    assert "pausing the idle models would not be enough" in made.refusal


def test_answers_keep_the_context_that_they_need():
    assert plan(4, 5, use(1, 2, 1.0), answers=0.9).releases == ()
    assert plan(4, 5, use(1, 2, 1.0), answers=2.0).model_ids == (1,)
    made = plan(4, 5, use(1, 2, 1.0, idle=False), answers=2.0)
    assert made.refusal is not None and "answers that are being written need their context" in made.refusal


def test_speeds_follow_what_was_measured():
    speeds = Speeds()
    assert speeds.seconds("wake", GB) is None
    assert speeds.seconds("wake", GB, 2.0 * GB) == 0.5
    speeds.measured("wake", 4 * GB, 1.0)
    assert speeds.seconds("wake", GB, 2.0 * GB) == 0.25
    speeds.measured("wake", 8 * GB, 1.0)
    assert speeds.seconds("wake", 6 * GB) == pytest.approx(1.0)
    speeds.measured("wake", 0, 1.0)
    assert speeds.seconds("wake", 6 * GB) == pytest.approx(1.0)
