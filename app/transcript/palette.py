"""Colours of the transcript: looks to terminal styles, from the theme and a pygments style."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pygments.style import StyleMeta
from pygments.styles import get_style_by_name
from pygments.token import string_to_tokentype
from pygments.util import ClassNotFound
from rich.style import Style
from textual.color import Color

from app.markdown.text import Look

if TYPE_CHECKING:
    from textual.widget import Widget

_log = logging.getLogger(__name__)

DARK_CODE_STYLE = "one-dark"
LIGHT_CODE_STYLE = "tango"
_MIN_CONTRAST = 60
_CHANGES = {"Token.Generic.Inserted": "inserted", "Token.Generic.Deleted": "deleted"}
"""Lines of a diff have the theme's colours: some styles of code give both the same."""


class Palette:
    """The styles of one theme. `generation` tells drawings of different palettes apart."""

    def __init__(self, widget: Widget, generation: int) -> None:
        self.generation = generation
        self._widget = widget
        self._styles: dict[Look, Style] = {}
        self._components: dict[str, Style] = {}
        theme = widget.app.current_theme
        self._code = _code_style(theme.variables.get("code-style", ""), theme.dark)

    def component(self, name: str) -> Style:
        """Return the style of the component class `transcript--NAME`."""
        style = self._components.get(name)
        if style is None:
            style = self._widget.get_component_rich_style(f"transcript--{name}")
            self._components[name] = style
        return style

    def style(self, look: Look) -> Style:
        """Return the style of a look."""
        style = self._styles.get(look)
        if style is None:
            style = self._styles[look] = self._make(look)
        return style

    def _make(self, look: Look) -> Style:
        if look.kind.startswith("token:"):
            return self._token(look.kind.removeprefix("token:"))
        style = self.component(look.kind)
        return style + Style(
            bold=look.bold or None,
            italic=look.italic or None,
            strike=look.strike or None,
            link=look.href or None,
        )

    def _token(self, name: str) -> Style:
        if name in _CHANGES:
            return self.component(_CHANGES[name])
        base = self.component("codeblock")
        token = self._code.style_for_token(string_to_tokentype(name.removeprefix("Token.")))
        color = f"#{token['color']}" if token["color"] else None
        if color and base.bgcolor:
            background = Color.from_rich_color(base.bgcolor)
            if abs(Color.parse(color).brightness - background.brightness) * 255 < _MIN_CONTRAST:
                color = None
        return base + Style(color=color, bold=token["bold"] or None, italic=token["italic"] or None)


def _code_style(name: str, dark: bool) -> StyleMeta:
    fallback = DARK_CODE_STYLE if dark else LIGHT_CODE_STYLE
    try:
        return get_style_by_name(name or fallback)
    except ClassNotFound:
        _log.warning("code-style %r of the theme is no pygments style; %s is used", name, fallback)
        return get_style_by_name(fallback)
