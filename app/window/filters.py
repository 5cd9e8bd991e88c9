"""What becomes of a line on its way to the terminal: signs it has, and colours it has."""

from functools import lru_cache

from rich.cells import cell_len
from rich.color import Color as RichColor
from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

from app.terminal.glyphs import ASCII


class AsciiGlyphs(LineFilter):
    """Puts an ASCII sign in the place of every line, block and mark."""

    def __init__(self, *, letters: bool) -> None:
        """letters: whether the terminal has none but ASCII's, so that others become question marks."""
        super().__init__()
        self._letters = letters

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002
        """Translate what is not ASCII."""
        return [
            segment if segment.text.isascii() else Segment(self._plain(segment.text), *segment[1:])
            for segment in segments
        ]

    def _plain(self, text: str) -> str:
        text = text.translate(ASCII)
        if self._letters and not text.isascii():
            text = "".join(char if char.isascii() else "?" * cell_len(char) for char in text)
        return text


class SixteenColors(LineFilter):
    """Keeps to the terminal's own colours: what was mixed of them becomes the nearest one."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002
        """Replace mixed colours."""
        return [
            segment
            if segment.style is None
            else Segment(segment.text, _sixteen(segment.style), segment.control)
            for segment in segments
        ]


@lru_cache(1024)
def _sixteen(style: Style) -> Style:
    color, ground = _nearest(style.color), _nearest(style.bgcolor)
    return (
        style if (color, ground) == (style.color, style.bgcolor) else style + Style.from_color(color, ground)
    )


def _nearest(color: RichColor | None) -> RichColor | None:
    return color if color is None or color.triplet is None else color.downgrade(ColorSystem.STANDARD)
