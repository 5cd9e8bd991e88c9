"""What settings mean for the app that runs: at the start, and when one is changed."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual import constants
from textual.filter import LineFilter

from app.settings import actions
from app.settings.file import Settings
from app.settings.keys import wrong_keys
from app.terminal.glyphs import is_utf8
from app.window.filters import AsciiGlyphs, SixteenColors

if TYPE_CHECKING:
    from app.window.app import ChatApp


class LiveSettings:
    """Carries out settings that hold at once."""

    def __init__(self, app: "ChatApp", warnings: list[str]) -> None:
        """warnings: takes what is wrong with the person's keys."""
        self._app = app
        self._utf8 = is_utf8(os.environ)
        self._glyphs: AsciiGlyphs | None = None
        self._colors = SixteenColors()
        self.still = False
        """Whether nothing is to blink, turn or slide."""
        warnings += wrong_keys(app.settings.keys, actions.label_of("help", app.settings.keys))
        self._apply_all(app.settings)

    @property
    def filters(self) -> Sequence[LineFilter]:
        """What every line passes on its way to the terminal."""
        colors = [self._colors] if self._app.current_theme.ansi else []
        return [*colors, *([self._glyphs] if self._glyphs is not None else [])]

    def apply(self, section: str, name: str) -> None:
        """Follow a setting that was changed."""
        app = self._app
        assert app.context is not None
        settings = app.settings = app.context.settings
        if (section, name) == ("general", "theme"):
            app.context.looks.show(settings.general.theme)
        if section == "keys":
            self._warn_of_key(settings, name)
        self._apply_all(settings)
        if (section, name) == ("terminal", "glyphs"):
            app.refresh_css(animate=False)
        if (screen := app.chat_screen) is not None:
            screen.settings_changed()

    def _warn_of_key(self, settings: Settings, name: str) -> None:
        for problem in wrong_keys(settings.keys, actions.label_of("help", settings.keys)):
            if problem.split()[0].rstrip(":") == f"keys.{name}":
                self._app.notify(problem, severity="warning", timeout=10)

    def _apply_all(self, settings: Settings) -> None:
        known = {action.id for action in actions.ACTIONS}
        self._app.set_keymap({name: keys for name, keys in settings.keys.items() if name in known})
        terminal = settings.terminal
        ascii_only = terminal.glyphs == "ascii" or (terminal.glyphs == "auto" and not self._utf8)
        self._glyphs = AsciiGlyphs(letters=not self._utf8) if ascii_only else None
        self.still = terminal.motion == "reduced"
        self._app.animation_level = "none" if self.still else constants.TEXTUAL_ANIMATIONS
