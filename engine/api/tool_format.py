"""How models call tools: one table, from which each model gets its row.

A template tells which one its model has been taught. The opening mark is often a token of its own, which
comes through the stream as a marker.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class CallStyle(StrEnum):
    """What stands inside a call."""

    JSON = "json"
    """`{"name": …, "arguments": {…}}`, or a list of such."""
    NAMED = "named"
    """As JSON, or a name, `[ARGS]` and the arguments."""
    XML = "xml"
    """`<function=…>` around `<parameter=…>`."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's wish to have a tool run."""

    id: str
    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    """By name; a string where the model wrote no object."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """Calls in the text of an answer."""

    opens: str
    closes: str
    """Ends a call; "" for one that lasts until the answer's end."""
    named_by: tuple[str, ...]
    """What all stands in the templates of such models."""
    style: CallStyle = CallStyle.JSON
    bare: bool = False
    """Whether an answer may be a call without the opening mark."""


ARGUMENTS_MARK = "[ARGS]"
"""Between a name and its arguments."""
CALL_ID_MARK = "[CALL_ID]"
"""Between a name and an id that the model gives the call."""
_FORMATS = (
    ToolFormat("<tool_call>", "</tool_call>", ("<tool_call>", "<function="), CallStyle.XML),
    ToolFormat("<tool_call>", "</tool_call>", ("<tool_call>",)),
    ToolFormat("[TOOL_CALLS]", "", ("[TOOL_CALLS]",), CallStyle.NAMED),
    ToolFormat("<|python_tag|>", "", ('"parameters": dictionary',), bare=True),
)
TOOL_MARKERS = frozenset(
    mark for row in _FORMATS for mark in (row.opens, row.closes, ARGUMENTS_MARK, CALL_ID_MARK) if mark
)
"""Whatever parts a call from an answer, or its own parts, in some format."""


def tool_format_of(template: str) -> ToolFormat | None:
    """The format of a model, from its chat template; None for one that is not in the table."""
    return next((row for row in _FORMATS if all(mark in template for mark in row.named_by)), None)
