"""Rows of the transcript as strips of the terminal."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from app.markdown.text import BAND, Line, Look, cells
from app.transcript.message import FOOTER, MessageRows
from app.transcript.palette import Palette

# Cells left of the text, where the bar of a message by the reader stands.
GUTTER = 2
Mark = tuple[int, int, str]
"""Characters [start, end) of a row, and the component whose ground they stand on."""


def paint(item: MessageRows, line: Line, palette: Palette, width: int, margin: int) -> Strip:
    """Return a row's strip: margin, gutter, runs, and the background of code up to `width` cells of text.

    A palette is for one margin.
    """
    if line.strip is not None and line.painted == palette.generation:
        return line.strip
    bare = item.role in ("assistant", "tool") or line.mark[0] > FOOTER
    kind = item.role if item.role in ("user", "system") else "assistant"
    segments = [Segment("  " if bare else "▌ ", palette.style(Look(f"gutter-{kind}")))]
    if margin:
        segments[0] = Segment(" " * margin + segments[0].text, segments[0].style)
    segments += [Segment(run.text, palette.style(run.look)) for run in line.runs if run.text]
    if line.fill == BAND:
        # Under each cell's own style: code in a table keeps its ground.
        ground = Style(bgcolor=palette.component(BAND).bgcolor)
        plain = palette.component("text").bgcolor
        segments[1:] = [
            Segment(text, style + ground)
            if style is not None and style.bgcolor == plain
            else Segment(text, style)
            for text, style, _ in segments[1:]
        ]
    length = sum(cells(segment.text) for segment in segments)
    if line.fill and (missing := width + margin + GUTTER - length) > 0:
        segments.append(Segment(" " * missing, palette.component(line.fill)))
        length += missing
    line.strip, line.painted = Strip(segments, length), palette.generation
    return line.strip


def highlight(strip: Strip, span: tuple[int, int] | None, style: Style, least: int = GUTTER) -> Strip:
    """Return the strip with the characters [start, end) on the ground of `style`, none before `least`.

    An end of -1 is the row's.
    """
    # Over the text's own style, which has a background too; its colours stay readable.
    return mark(strip, span, Style(bgcolor=style.bgcolor, underline=style.underline), least)


def mark(strip: Strip, span: tuple[int, int] | None, style: Style, least: int = GUTTER) -> Strip:
    """Return the strip with the characters [start, end) in `style`."""
    if span is None:
        return strip
    text = strip.text
    start = cells(text[: max(least, span[0])])
    end = cells(text) if span[1] == -1 else cells(text[: span[1]])
    if end <= start:
        return strip
    left, middle, right = strip.divide([start, end, max(end, strip.cell_length)])
    marked = Strip(Segment.apply_style(middle, post_style=style), middle.cell_length)
    return Strip.join([left, marked, right])


def with_chip(strip: Strip, lines: int, width: int, palette: Palette) -> tuple[Strip, tuple[int, int]]:
    """Lay the chip that counts unseen lines over a row; return the row and the cells the chip takes."""
    if not lines:
        return strip, (0, 0)
    text = f" {lines:,} new line{'' if lines == 1 else 's'} ↓  (End) "
    start = max(0, (width - cells(text)) // 2)
    end = start + cells(text)
    chip = Strip([Segment(text, palette.component("chip"))], cells(text))
    return Strip.join([strip.crop(0, start), chip, strip.crop(end, width)]), (start, end)
