"""Keys that a person gives to actions: whether a terminal sends them, and whether two actions share one."""

from collections import defaultdict
from collections.abc import Mapping

from app.settings.actions import ACTIONS, key_label, keys_of, named

_MODIFIERS = frozenset({"ctrl", "alt", "shift", "super", "meta", "hyper"})
_NAMED = frozenset(
    {
        *("enter", "escape", "tab", "space", "backspace", "delete", "insert"),
        *("home", "end", "pageup", "pagedown", "up", "down", "left", "right"),
        *("underscore", "backslash", "right_square_bracket", "circumflex_accent"),
    }
)
"""Beside letters, digits and function keys; the last four are those that Ctrl has of its own."""
_TYPED = frozenset({"space", "enter", "backspace", "delete", "tab", "up", "down", "left", "right"})
"""Keys that write or move while a message is written, so no action may have them alone."""
_GO_TO_TAB = {f"alt+{number}": f"chat {number}" for number in range(1, 10)}


def checked_keys(text: str) -> str:
    """Return keys, comma separated; `ValueError` completes the words "must be"."""
    keys = [key.strip() for key in text.split(",") if key.strip()]
    if not keys:
        raise ValueError('keys such as "ctrl+t" or "f2,alt+n", not nothing')
    for key in keys:
        _check(key)
    return ",".join(keys)


def _check(key: str) -> None:
    *modifiers, last = key.split("+")
    for modifier in modifiers:
        if modifier not in _MODIFIERS:
            raise ValueError(f'keys such as "ctrl+t"; in {key!r}, {modifier!r} is none of ctrl, alt, shift')
    function = last[:1] == "f" and last[1:].isdigit() and 1 <= int(last[1:]) <= 24
    letter = len(last) == 1 and last.isalnum()
    if last != last.lower() or not (letter or function or last in _NAMED):
        raise ValueError(f'keys such as "ctrl+t", "f2" or "alt+n"; {key!r} is none that terminals send')
    if not set(modifiers) - {"shift"} and (len(last) == 1 or last in _TYPED):
        raise ValueError(f"keys with ctrl or alt, or f1 to f24; {key!r} is needed to write")


def wrong_keys(overrides: Mapping[str, str], help_key: str) -> list[str]:
    """Return what is wrong with a person's own keys, a sentence each."""
    known = {action.id for action in ACTIONS}
    problems = [
        f"keys.{name}: there is no such action; {help_key} lists them"
        for name in overrides
        if name not in known
    ]
    for name, keys in overrides.items():
        if name in known:
            try:
                checked_keys(keys)
            except ValueError as error:
                problems.append(f"keys.{name} must be {error}")
    return problems + _clashes(overrides)


def _clashes(overrides: Mapping[str, str]) -> list[str]:
    """Name every key that two actions have, where a person gave it to one of them."""
    owners: defaultdict[str, list[str]] = defaultdict(list)
    for action in ACTIONS:
        for key in filter(None, keys_of(action, overrides).split(",")):
            owners[key.strip()].append(action.id)
    problems = []
    for key, names in owners.items():
        given = [name for name in names if name in overrides]
        if not given:
            continue
        others = [named(name).title for name in names if name != given[0]]
        if key in _GO_TO_TAB:
            others.append(f"go to {_GO_TO_TAB[key]}")
        if others:
            lost = " and ".join(f"“{title}”" for title in others)
            problems.append(
                f"keys.{given[0]}: {key_label(key)} is also the key of {lost}, where it does nothing now"
            )
    return problems
