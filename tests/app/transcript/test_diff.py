"""Lines of a diff: what is added and what is taken away differ in every theme."""

from pathlib import Path

import pytest
from rich.style import Style
from textual.app import App
from textual.color import Color

from app.markdown.text import Look
from app.settings.themes import load_themes
from app.transcript.view import MessageView, Transcript
from app.window.themes import textual_theme
from tests.app.driving import wait_until

DIFF = "```diff\n@@ -1 +1 @@\n same\n-old\n+new\n```\n\nend"
THEMES = {theme.name: textual_theme(theme) for theme in load_themes(Path("none"))[0] if not theme.ansi}


class DiffApp(App[None]):
    def compose(self):
        yield Transcript()


@pytest.mark.parametrize("theme", THEMES)
async def test_added_lines_are_green_and_removed_ones_red(theme):
    app = DiffApp()
    app.register_theme(THEMES[theme])
    app.theme = theme
    async with app.run_test(size=(60, 20)) as pilot:
        transcript = app.query_one(Transcript)
        transcript.show([MessageView("1", "assistant", DIFF, status="streaming")])
        await wait_until(pilot, lambda: len(styles(transcript)) == 2)
        colours = styles(transcript)
        added, removed = colours["+new"], colours["-old"]
        assert near(added, THEMES[theme].success) and near(removed, THEMES[theme].error)
        code = transcript._colours().style(Look("codeblock"))
        assert added.bgcolor == removed.bgcolor == code.bgcolor
        for style in (added, removed):
            ground, text = Color.from_rich_color(style.bgcolor), Color.from_rich_color(style.color)
            assert contrast(text, ground) > 4
        assert removed.color.triplet.red > removed.color.triplet.green
        assert added.color.triplet.green > added.color.triplet.red


def styles(transcript: Transcript) -> dict[str, Style]:
    """Those of the two lines, once they are drawn."""
    segments = [segment for y in range(transcript.size.height) for segment in transcript.render_line(y)]
    return {s.text.strip(): s.style for s in segments if s.text.strip() in ("-old", "+new") and s.style}


def near(style, colour: str) -> bool:
    """Whether a text has a colour, but for rounding."""
    return max(abs(a - b) for a, b in zip(style.color.triplet, Color.parse(colour).rgb, strict=True)) <= 2


def contrast(one: Color, other: Color) -> float:
    """WCAG's contrast of two colours."""
    first, second = sorted((luminance(one), luminance(other)))
    return (second + 0.05) / (first + 0.05)


def luminance(colour: Color) -> float:
    parts = [
        value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4 for value in colour.normalized
    ]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]
