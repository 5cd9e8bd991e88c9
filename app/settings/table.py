"""Every setting in one table, for whoever shows them: what it is, what it may be, when it takes effect."""

import re
from collections.abc import Sequence
from dataclasses import Field, dataclass, fields
from typing import Any

from app.settings.actions import ACTIONS
from app.settings.file import AT_START, IN_NEW_CHATS, Settings
from app.settings.keys import checked_keys
from app.settings.options import checked, kind_of

AT_ONCE = "at once"
_WHEN = {"engine": AT_START, "sampling": IN_NEW_CHATS}
"""When the settings of a section take effect, unless one says otherwise itself."""
_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `choices` are all that it may be; of a list, what may stand in it."""

    section: str
    name: str
    default: Any
    help: str
    when: str = AT_ONCE
    choices: tuple[str, ...] = ()
    limits: Any = None

    def value(self, settings: Settings) -> Any:
        """Return what it is now."""
        if self.section == "keys":
            return settings.keys.get(self.name, self.default)
        return getattr(getattr(settings, self.section), self.name)

    def parsed(self, text: str) -> Any:
        """Return the value of a text that a person wrote; `ValueError` says what it must be."""
        if self.section == "keys":
            return checked_keys(text) if text.strip() or self.default else ""
        value: Any = text.strip()
        if isinstance(self.default, bool):
            value = _TRUTH.get(value.lower(), value)
        elif isinstance(self.default, tuple):
            value = [part.strip() for part in text.split(",") if part.strip()]
        elif isinstance(self.default, int | float):
            value = _number(value)
        else:
            value = re.sub(r"\\(\\|n)", lambda found: "\n" if found[1] == "n" else "\\", value)
        if isinstance(value, str) and isinstance(self.default, bool | int | float):
            raise ValueError(f"{kind_of(self.default)}, not {value!r}")
        limits = dict(self.limits or {}) | ({"choices": self.choices} if self.choices else {})
        return checked(value, self.default, limits)

    def written(self, value: Any) -> str:
        """Return a value as `parsed` reads it."""
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, tuple):
            return ", ".join(value)
        if isinstance(value, str) and self.section != "keys":
            return value.replace("\\", "\\\\").replace("\n", "\\n")
        return str(value)

    def next_choice(self, value: Any) -> Any:
        """Return the choice after this one, round the end; None for a setting that has to be written."""
        if isinstance(self.default, bool):
            return not value
        if not self.choices or isinstance(self.default, tuple):
            return None
        at = self.choices.index(value) if value in self.choices else -1
        return self.choices[(at + 1) % len(self.choices)]


def all_settings(themes: Sequence[str]) -> list[Setting]:
    """Return every setting but servers of tools, those of a section together; `themes` are the names of
    those that are there.
    """
    found = []
    for section in fields(Settings):
        if section.name == "keys":
            found += [_key(action.id) for action in ACTIONS]
            continue
        if section.name in ("endpoints", "tools"):
            # Each is a section of its own, which the file alone can hold.
            continue
        options = fields(getattr(Settings(), section.name))
        found += [_setting(section.name, option, themes) for option in options if option.metadata]
    return found


def _setting(section: str, option: "Field[Any]", themes: Sequence[str]) -> Setting:
    limits = option.metadata
    choices = tuple(themes) if (section, option.name) == ("general", "theme") else limits.get("choices", ())
    when = limits.get("when", _WHEN.get(section, AT_ONCE))
    return Setting(section, option.name, option.default, limits["help"], when, choices, limits)


def _key(name: str) -> Setting:
    action = next(action for action in ACTIONS if action.id == name)
    return Setting("keys", name, action.keys, f"{action.title}. {action.help}".rstrip())


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
