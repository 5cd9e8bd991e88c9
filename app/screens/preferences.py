"""Changing settings while the app runs. Knows no widget: plain mode changes them here too."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.screens.context import AppContext
from app.settings.file import Settings, with_value
from app.settings.writer import SettingsWriter


@dataclass(frozen=True, slots=True)
class ThemeChoice:
    """A theme that can be chosen."""

    name: str
    description: str


class Preferences:
    """Takes new values: they hold at once, and are written into the settings file beside."""

    def __init__(
        self,
        context: AppContext,
        writer: SettingsWriter,
        apply: Callable[[str, str], None],
    ) -> None:
        """apply: carries out what a change means for what is shown."""
        self._context, self._writer, self._apply = context, writer, apply

    def close(self, timeout: float) -> None:
        """Wait until everything is written, but no longer than this."""
        self._writer.close(timeout)

    def change(self, section: str, name: str, value: Any) -> Settings:
        """Take a value, None for the default; return the settings as they are now."""
        settings = with_value(self._context.settings, section, name, value)
        self._context.settings = settings
        keys = self._context.services.keys
        keys.clear()
        keys.update(settings.keys)
        self._writer.save(section, name, value)
        self._apply(section, name)
        return settings
