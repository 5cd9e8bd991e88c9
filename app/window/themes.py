"""The theme files as Textual's themes: registered, listed, and read again when one is saved."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from textual.app import App
from textual.theme import Theme

from app.screens.preferences import ThemeChoice
from app.settings.themes import ThemeFile, load_themes

_LOOK_SECONDS = 2.0
_ON_ANSI = "ansi_default"
"""What is a little lighter than the ground elsewhere: between 16 colours there is nothing."""
_Marks = dict[str, tuple[int, int]]


class Themes:
    """The themes of an app; those of the person's folder come first, then the app's own, then Textual's."""

    def __init__(self, app: App[int], folder: Path, warn: Callable[[str], None]) -> None:
        """warn: told what is wrong with a file that was saved while the app runs."""
        self._app, self._folder, self._warn = app, folder, warn
        self._files: list[ThemeFile] = []
        self._foreign = list(app.available_themes)
        self._marks: _Marks = {}

    def load(self) -> list[str]:
        """Register every theme; return what is wrong with their files."""
        self._marks = _marks(self._folder)
        self._files, warnings = load_themes(self._folder)
        for theme in self._files:
            self._app.register_theme(textual_theme(theme))
        return warnings

    def choices(self) -> list[ThemeChoice]:
        """Return the themes in the order they are offered."""
        own = [theme for theme in self._files if Path(theme.source).parent == self._folder]
        packaged = [theme for theme in self._files if theme not in own]
        choices = [ThemeChoice(theme.name, f"yours: {theme.description}") for theme in own]
        choices += [ThemeChoice(theme.name, theme.description) for theme in packaged]
        names = {choice.name for choice in choices}
        foreign = [name for name in self._foreign if name not in names]
        return choices + [ThemeChoice(name, "one of Textual's") for name in sorted(foreign)]

    def show(self, name: str) -> None:
        """Draw the app in a theme."""
        if name in self._app.available_themes:
            self._app.theme = name

    def watch(self) -> None:
        """Look from time to time whether a file of the person's folder was saved."""
        self._app.set_interval(_LOOK_SECONDS, self._look)

    async def _look(self) -> None:
        marks = await asyncio.to_thread(_marks, self._folder)
        if marks != self._marks:
            self.reload()

    def reload(self) -> None:
        """Read the files again, say what is wrong with them, and draw the present theme anew."""
        warnings = self.load()
        for warning in warnings:
            self._warn(warning)
        # The same name again: Textual watches nothing but names.
        self._app.mutate_reactive(App.theme)


def _marks(folder: Path) -> _Marks:
    """When each theme file was changed, and its size."""
    try:
        found = {path.name: path.stat() for path in folder.glob("*.toml")}
    except OSError:
        return {}
    return {name: (stat.st_mtime_ns, stat.st_size) for name, stat in found.items()}


def textual_theme(theme: ThemeFile) -> Theme:
    """Return a theme file as a theme to register with Textual."""
    return Theme(
        name=theme.name,
        dark=theme.dark,
        ansi=theme.ansi,
        variables=theme.resolved_variables(),
        text_alpha=1.0,
        boost=_ON_ANSI if theme.ansi else None,
        **theme.colors,  # type: ignore[arg-type]
    )
