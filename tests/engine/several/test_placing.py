"""To which of several engines a model goes."""

import pytest

from engine.api.errors import EngineError, EngineFailedError, ModelFileError
from engine.api.load_plan import LoadPlan, PlannedRelease, Release
from engine.several.placing import place

OTHER = PlannedRelease(1, "other", "other.gguf", 5, Release.PAUSE, 1.0)


def plan(free: int = 10, **more) -> LoadPlan:
    return LoadPlan("m", 5, free, **more)


WHOLE, SMALLER = plan(20), plan(10)
CROWDED, MORE_CROWDED = plan(90, releases=(OTHER,)), plan(80, releases=(OTHER,))
SLOW, FAST = plan(4, placement="1 of 2", tok_s=3.0), plan(3, placement="1 of 2", tok_s=30.0)
UNKNOWN, REFUSED = plan(9, placement="1 of 2"), plan(99, refusal="too large")


@pytest.mark.parametrize(
    "best, others",
    [
        (WHOLE, [SMALLER, CROWDED, FAST, REFUSED]),
        (SMALLER, [CROWDED, FAST]),
        (CROWDED, [MORE_CROWDED, FAST, REFUSED]),
        (FAST, [SLOW, UNKNOWN, REFUSED]),
        (UNKNOWN, [REFUSED]),
        (REFUSED, [plan(98, refusal="too large")]),
        (REFUSED, [ModelFileError("no memory"), EngineFailedError("lost")]),
    ],
)
def test_a_model_goes_where_it_is_best(best, others):
    def plan_of(said: LoadPlan | EngineError) -> LoadPlan:
        if isinstance(said, EngineError):
            raise said
        return said

    assert place([best, *others], plan_of) == (best, best)
    assert place([*others, best], plan_of) == (best, best)


def test_of_equals_it_is_the_first():
    assert place(["first", "second"], lambda engine: WHOLE)[0] == "first"


def test_where_none_has_a_plan_it_is_said_why():
    def refuse(engine: str) -> LoadPlan:
        raise ModelFileError("m.gguf: the header is cut")

    with pytest.raises(ModelFileError, match="header"):
        place(["first", "second"], refuse)
