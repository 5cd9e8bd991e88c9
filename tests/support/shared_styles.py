"""Style sheets are parsed once for all apps of a process: a tenth of what a test of a screen computes."""

from typing import Any

import pytest
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet

_parse = Stylesheet._parse_rules
_known: dict[tuple[Any, ...], list[RuleSet]] = {}


def _parse_once(self: Stylesheet, css: str, read_from: Any, *args: Any, **named: Any) -> list[RuleSet]:
    variables = tuple(sorted(self._variables.items()))
    key = (css, read_from, args, tuple(sorted(named.items())), variables)
    if key not in _known:
        _known[key] = _parse(self, css, read_from, *args, **named)
    return list(_known[key])


def share_styles(patch: pytest.MonkeyPatch) -> None:
    """Have every app take what an earlier one has parsed of the same text and variables."""
    patch.setattr(Stylesheet, "_parse_rules", _parse_once)
