"""The transcript's contract: it follows its end, never moves the reader, shows and gives back every byte."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from textual.app import App, ComposeResult
from textual.geometry import Offset
from textual.pilot import Pilot
from textual.selection import Selection

from app.transcript import message
from app.transcript.view import MessageView, Transcript
from tests.app.driving import shown_answer

RICH = """# Batching

Tokens chase a **target**; see `plan()` and [the notes](https://example.org/notes).

- rows *decode* every tick
  - one token each
- [x] done
1. first

> The budget is shared.

```python
def plan(now: float) -> list[int]:
    \"\"\"One tick.\"\"\"
    return [row for row in rows if row.ready]  # all
```

| rows | tok/s |
|-----:|------:|
|    1 |   210 |
|    8 |   640 |

---
Done.
"""


class TranscriptApp(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.copied: list[str] = []

    def compose(self) -> ComposeResult:
        yield Transcript(id="transcript")

    def on_transcript_copy_requested(self, message: Transcript.CopyRequested) -> None:
        self.copied.append(message.text)


def history(count: int) -> list[MessageView]:
    return [
        MessageView(
            str(i), "user" if i % 2 == 0 else "assistant", f"message {i}\n\n" + f"word{i} " * (i % 40 * 5 + 3)
        )
        for i in range(count)
    ]


def screen_rows(transcript: Transcript) -> list[str]:
    return [transcript.render_line(y).text.rstrip() for y in range(transcript.size.height)]


def top(transcript: Transcript) -> str:
    return screen_rows(transcript)[0]


async def settle(pilot: Pilot[None], seconds: float = 0.0) -> None:
    await pilot.pause(seconds)
    await pilot.pause()


async def opened(pilot: Pilot[None], views: list[MessageView]) -> Transcript:
    transcript = pilot.app.query_one(Transcript)
    transcript.show(views)
    await settle(pilot)
    return transcript


async def test_follows_the_end_while_text_arrives() -> None:
    async with TranscriptApp().run_test(size=(60, 12)) as pilot:
        transcript = await opened(pilot, history(6))
        transcript.begin(MessageView("a", "assistant", "", status="streaming", title="pocket"))
        for i in range(40):
            transcript.append_text("a", f"line {i}\n")
        await settle(pilot, 0.15)
        assert transcript.follow
        assert any("line 39" in row for row in screen_rows(transcript))


async def test_finish_draws_everything_at_once_and_keeps_every_byte() -> None:
    async with TranscriptApp().run_test(size=(60, 12)) as pilot:
        transcript = await opened(pilot, [])
        transcript.begin(MessageView("a", "assistant", "", status="streaming"))
        source = "x\r\n\x1b[31m \u202e中 ```\nlast **words"
        for character in source:
            transcript.append_text("a", character)
        transcript.finish("a", "stopped", "3 tokens")
        assert shown_answer(transcript) == source
        shown = "\n".join(screen_rows(transcript))
        assert "last **words" in shown
        assert "■ 3 tokens" in shown
        assert "\x1b" not in shown


@pytest.mark.parametrize("key", ["pageup", "shift+up", "home"])
async def test_the_reader_is_not_moved_by_text_or_completion(key: str) -> None:
    async with TranscriptApp().run_test(size=(60, 12)) as pilot:
        transcript = await opened(pilot, history(30))
        transcript.begin(MessageView("a", "assistant", "start\n", status="streaming"))
        await settle(pilot)
        transcript.focus()
        await pilot.press(key)
        await settle(pilot)
        before = screen_rows(transcript)[:-1]
        assert not transcript.follow
        for i in range(30):
            transcript.append_text("a", f"# line {i}\n")
        await settle(pilot, 0.15)
        transcript.finish("a", "complete", "done")
        transcript.begin(MessageView("b", "assistant", "another"))
        await settle(pilot)
        assert screen_rows(transcript)[:-1] == before
        assert "new lines ↓  (End)" in screen_rows(transcript)[-1]
        await pilot.press("end")
        await settle(pilot)
        assert transcript.follow
        assert "new line" not in screen_rows(transcript)[-1]
        assert any("another" in row for row in screen_rows(transcript))


async def test_wheel_up_releases_and_wheel_down_follows_again() -> None:
    async with TranscriptApp().run_test(size=(60, 12)) as pilot:
        transcript = await opened(pilot, history(30))
        transcript._on_mouse_scroll_up(_wheel(transcript))
        await settle(pilot)
        assert not transcript.follow
        for _ in range(3):
            transcript._on_mouse_scroll_down(_wheel(transcript))
        await settle(pilot)
        assert transcript.follow


def _wheel(transcript: Transcript):
    from textual.events import MouseScrollUp

    return MouseScrollUp(transcript, 5, 5, 0, 0, 0, False, False, False)


async def test_a_click_on_the_chip_jumps_to_the_end() -> None:
    async with TranscriptApp().run_test(size=(60, 12)) as pilot:
        transcript = await opened(pilot, history(30))
        transcript.focus()
        await pilot.press("pageup")
        transcript.begin(MessageView("b", "assistant", "another"))
        await settle(pilot)
        column = screen_rows(transcript)[-1].index("new line")
        await pilot.click(Transcript, offset=(column, 11))
        await settle(pilot)
        assert transcript.follow


async def test_scrolling_up_through_estimates_shows_every_message_once_in_order() -> None:
    async with TranscriptApp().run_test(size=(60, 20)) as pilot:
        transcript = await opened(pilot, history(120))
        transcript.focus()
        seen = [row for row in screen_rows(transcript) if row.lstrip("▌ ").startswith("message ")]
        while transcript.scroll_y > 0:
            before = screen_rows(transcript)
            await pilot.press("pageup")
            await settle(pilot)
            after = screen_rows(transcript)
            overlap = transcript.size.height - 1 if transcript.scroll_y == 0 else 0
            if not overlap:
                assert after != before
            fresh = [row for row in after if row.lstrip("▌ ").startswith("message ")]
            seen = [row for row in fresh if row not in seen] + seen
        numbers = [int(row.split()[-1]) for row in seen]
        assert numbers == list(range(120))


@pytest.mark.parametrize("steps", [1, 7, 23])
async def test_resize_keeps_the_top_row(steps: int) -> None:
    async with TranscriptApp().run_test(size=(100, 20)) as pilot:
        views = [
            MessageView(str(i), "assistant", f"w{i}a " + " ".join(f"w{i}.{j}" for j in range(90)))
            for i in range(20)
        ]
        transcript = await opened(pilot, views)
        transcript.focus()
        for _ in range(steps):
            await pilot.press("shift+up")
        await settle(pilot)
        first = next(row for row in screen_rows(transcript) if "." in row).split()[0]
        index = next(i for i, row in enumerate(screen_rows(transcript)) if "." in row)
        for width in (47, 100):
            await pilot.resize_terminal(width, 20)
            await settle(pilot)
            near = " ".join(screen_rows(transcript)[: index + 2])
            assert first in near


async def test_reasoning_is_one_live_line_that_expands_and_collapses_in_place() -> None:
    async with TranscriptApp().run_test(size=(60, 14)) as pilot:
        transcript = await opened(pilot, [])
        transcript.begin(MessageView("a", "assistant", "", status="streaming"))
        transcript.append_text("a", "first thought\nand the sec", reasoning=True)
        transcript.append_text("a", "ond one", reasoning=True)
        await settle(pilot, 0.1)
        rows = screen_rows(transcript)
        assert rows[1] == "  ▸ thinking… 6 words · and the second one"
        transcript.append_text("a", "Answer.")
        transcript.finish("a", "complete", "")
        await settle(pilot)
        assert "▸ thought 6 words" in screen_rows(transcript)[1]
        await pilot.click(Transcript, offset=(5, 1))
        await settle(pilot)
        assert [row.strip() for row in screen_rows(transcript)[2:4]] == [
            "│ first thought",
            "│ and the second one",
        ]
        transcript.toggle_nearest_reasoning()
        await settle(pilot)
        assert "Answer." in screen_rows(transcript)[3]


async def test_collapsing_above_does_not_move_the_reader() -> None:
    async with TranscriptApp().run_test(size=(60, 12)) as pilot:
        views = [MessageView("r", "assistant", "text", reasoning="thought\n" * 30), *history(30)]
        transcript = await opened(pilot, views)
        transcript.scroll_to(y=60, animate=False)
        await settle(pilot)
        before = screen_rows(transcript)
        transcript.toggle_reasoning("r")
        await settle(pilot)
        assert screen_rows(transcript) == before
        transcript.toggle_reasoning("r")
        await settle(pilot)
        assert screen_rows(transcript) == before


async def test_copying() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(80, 40)) as pilot:
        transcript = await opened(
            pilot, [MessageView("q", "user", "why?"), MessageView("a", "assistant", RICH)]
        )
        (block,) = transcript.code_blocks("a")
        assert block.text.startswith("def plan") and block.text.endswith("# all")
        rows = screen_rows(transcript)
        label = next(i for i, row in enumerate(rows) if "copy" in row)
        await pilot.click(Transcript, offset=(rows[label].index("copy") + 1, label))
        await settle(pilot)
        assert app.copied == [block.text]


async def test_selection_joins_wrapped_rows_and_select_all_is_the_source() -> None:
    async with TranscriptApp().run_test(size=(40, 12)) as pilot:
        source = "one two three four five six seven eight nine ten\nnext"
        transcript = await opened(pilot, [MessageView("a", "assistant", source)])
        selected = transcript.get_selection(Selection(Offset(2, 1), Offset(6, 3)))
        assert selected == (source, "\n")
        assert transcript.get_selection(Selection(None, None)) == (source, "\n")
        await pilot.mouse_down(Transcript, offset=(2, 1))
        await pilot.hover(Transcript, offset=(9, 1))
        await pilot.mouse_up(Transcript, offset=(9, 1))
        await settle(pilot)
        assert transcript.screen.get_selected_text() == "one two"


async def test_remove_from_and_show_replace() -> None:
    async with TranscriptApp().run_test(size=(60, 12)) as pilot:
        transcript = await opened(pilot, history(9))
        transcript.remove_from("5")
        await settle(pilot)
        assert shown_answer(transcript).startswith("message 3")
        with pytest.raises(KeyError):
            transcript.code_blocks("5")
        await opened(pilot, [])
        assert shown_answer(transcript) == ""
        assert not any(screen_rows(transcript))


async def test_a_failure_while_rendering_shows_the_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Iterator[None]:
        raise RuntimeError("no")

    async with TranscriptApp().run_test(size=(60, 12)) as pilot:
        monkeypatch.setattr(message.Document, "layout", broken)
        transcript = await opened(pilot, [MessageView("a", "assistant", "# still\n*here*")])
        assert [row.strip() for row in screen_rows(transcript)[1:3]] == ["# still", "*here*"]


async def test_theme_switch_changes_colours_only() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(80, 40)) as pilot:
        transcript = await opened(pilot, [MessageView("a", "assistant", RICH)])
        await settle(pilot, 0.2)
        rows, strip = screen_rows(transcript), transcript.render_line(1)
        app.theme = "textual-light"
        await settle(pilot)
        assert screen_rows(transcript) == rows
        assert transcript.render_line(1) != strip


async def test_a_wide_view_has_its_text_in_the_middle_where_the_mouse_finds_it() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(143, 12)) as pilot:
        transcript = await opened(pilot, [MessageView("a", "assistant", "one two\n\n```\nx\n```")])
        assert screen_rows(transcript)[1] == " " * 21 + "one two"
        await pilot.mouse_down(Transcript, offset=(21, 1))
        await pilot.hover(Transcript, offset=(24, 1))
        await pilot.mouse_up(Transcript, offset=(24, 1))
        await settle(pilot)
        assert transcript.screen.get_selected_text() == "one"
        transcript.screen.clear_selection()
        label = screen_rows(transcript)[3]
        await pilot.click(Transcript, offset=(label.index("copy"), 3))
        await settle(pilot)
        assert app.copied == ["x"]
        await pilot.resize_terminal(60, 12)
        await settle(pilot)
        assert screen_rows(transcript)[1] == "  one two"
