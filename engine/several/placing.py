"""Which of several engines a model is for."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from engine.api.errors import EngineError
from engine.api.load_plan import LoadPlan

E = TypeVar("E")


def place(engines: Iterable[E], plan_of: Callable[[E], LoadPlan]) -> tuple[E, LoadPlan]:
    """The engine for a model, and what it plans.

    That with the most free memory of those where the model fits whole and nobody makes room; else of those
    where it fits whole; else the one where it will be fastest. Engines that have no plan are left out, as
    those whose device is lost; raises what one of them raises where none has.
    """
    plans: list[tuple[E, LoadPlan]] = []
    refused: EngineError | None = None
    for engine in engines:
        try:
            plans.append((engine, plan_of(engine)))
        except EngineError as error:
            refused = error
    if not plans and refused is not None:
        raise refused
    return min(plans, key=lambda one: _rank(one[1]))


def _rank(plan: LoadPlan) -> tuple[bool, bool, float, bool, int]:
    """Less is better."""
    divided = bool(plan.placement)
    slow = -(plan.tok_s or 0.0) if divided else 0.0
    return plan.refusal is not None, divided, slow, bool(plan.releases), -plan.free_bytes
