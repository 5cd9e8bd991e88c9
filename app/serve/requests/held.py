"""What an answer is held to: from the field of a request to the engine's constraint."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.serve.http.errors import ApiError, refused
from app.serve.requests.served import Served
from engine import Constraint, ConstraintError, ConstraintKind, Prompt, RequestError

ANY_OBJECT = '{"type": "object"}'


@dataclass(frozen=True, slots=True)
class Held:
    """As a request says it."""

    kind: ConstraintKind
    text: str
    field: str
    """Where it stands in the request."""
    calls: "Held | None" = None
    """Calls of tools that the answer may be instead."""


def held_to_calls(
    tools: Sequence[Mapping[str, Any]], field: str, *, forced: bool, name: str | None = None
) -> Held | None:
    """What a request's choice of tools and its tools ask for; raises `ApiError` for one that is not there.

    forced: the answer is a call. Otherwise calls are held to their tools where one of these is strict.
    """
    chosen = [tool for tool in tools if name in (None, tool["function"]["name"])]
    if forced:
        if not chosen:
            wanted = f"there is no tool {name!r} among the tools" if name else "there are no tools"
            raise refused(field, wanted)
        where = "tools" if name is None else f"tools[{tools.index(chosen[0])}]"
        return Held(ConstraintKind.CALLS, json.dumps(chosen), where)
    if any(tool["function"].get("strict") for tool in tools):
        return Held(ConstraintKind.TOOLS, json.dumps(list(tools)), "tools")
    return None


def checked_constraint(held: Held, served: Served, prompt: Prompt | None) -> Constraint:
    """The engine's, compiled; not for the event loop's thread. Raises `ApiError` with the place."""
    if held.calls is not None:
        # By itself first: what is wrong with a tool is then said with its place.
        checked_constraint(held.calls, served, prompt)
    template = served.model.template
    thinks = prompt is not None and (template.thinking_support.has_thoughts or prompt.starts_in_reasoning)
    constraint = Constraint(
        held.kind,
        held.text,
        prompt.answer_format if prompt is not None and thinks else None,
        prompt is not None and prompt.starts_in_reasoning,
        template.tool_format,
        held.calls.text if held.calls is not None else "",
    )
    try:
        served.model.check_constraint(constraint)
    except ConstraintError as error:
        raise _wrong(held, error.place, error.why) from error
    except RequestError as error:
        raise refused(held.field, str(error).removeprefix("constraint: ")) from error
    return constraint


def _wrong(held: Held, place: str, why: str) -> ApiError:
    if held.kind in (ConstraintKind.GRAMMAR, ConstraintKind.REGEX):
        return refused(held.field, f"{place}: {why}" if place else why)
    if held.field.endswith("]"):
        # One tool of several: its list has no other.
        place = place.removeprefix("[0]").removeprefix(".")
    joint = "." if place and not place.startswith("[") else ""
    return refused(f"{held.field}{joint}{place}", why)
