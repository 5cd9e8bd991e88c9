"""The lines below the transcript: what is looked for in it, and the keys that select."""

from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static


class FindBar(Horizontal):
    """A line to write a word in, and how often it is there; no word, no marks."""

    DEFAULT_CSS = """
    FindBar {
        display: none;
        height: 1;
        width: 1fr;
        padding: 0 1;
        background: $panel;
        &.-shown { display: block; }
        #find-label { width: 6; color: $foreground 60%; }
        #find-count { width: auto; padding: 0 1; color: $foreground; }
        #find-hint { width: auto; color: $foreground 55%; }
        Input { width: 1fr; height: 1; border: none; padding: 0; background: $panel; }
        Input:focus { border: none; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "step(1)", "Next", show=False),
        Binding("up,shift+enter", "step(-1)", "Before", show=False),
        Binding("escape", "close", "Close", show=False),
    ]

    class Changed(Message):
        """The reader looks for another word."""

        def __init__(self, word: str) -> None:
            super().__init__()
            self.word = word

    class Stepped(Message):
        """The reader wants the next hit, or the one before."""

        def __init__(self, step: int) -> None:
            super().__init__()
            self.step = step

    class Closed(Message):
        """The reader is done."""

    def compose(self) -> ComposeResult:
        """The word, the count and the keys."""
        yield Static("Find:", id="find-label")
        yield Input(id="find-word", compact=True)
        yield Static("", id="find-count", markup=False)
        yield Static("↓ Enter next · ↑ before · Esc closes", id="find-hint")

    @property
    def shown(self) -> bool:
        """Whether the bar is there."""
        return self.has_class("-shown")

    def open(self, word: str | None = None) -> None:
        """Show the bar with a word, or with the one that was looked for last, and write in it."""
        self.add_class("-shown")
        line = self.query_one(Input)
        if word is not None:
            line.value = word
        line.focus()
        line.select_all()
        self.post_message(self.Changed(line.value))

    def close(self) -> None:
        """Take the bar away; the word is kept for the next time."""
        self.remove_class("-shown")

    def show_count(self, number: int, count: int, *, whole: bool) -> None:
        """Say which hit is gone to and how many there are."""
        more = "" if whole else "+"
        if not self.query_one(Input).value:
            words = ""
        elif not count:
            words = "nothing found" if whole else "looking…"
        else:
            words = f"{number:,} of {count:,}{more}" if number else f"{count:,}{more} found"
        self.query_one("#find-count", Static).update(words)

    def on_resize(self) -> None:
        """Name the keys where there is room."""
        self.query_one("#find-hint").display = self.size.width >= 70

    @on(Input.Changed)
    def _on_changed(self, event: Input.Changed) -> None:
        event.stop()
        if self.shown:
            self.post_message(self.Changed(event.value))

    @on(Input.Submitted)
    def _on_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_step(1)

    def action_step(self, step: int) -> None:
        """Go to the next hit, or the one before."""
        self.post_message(self.Stepped(step))

    def action_close(self) -> None:
        """Be done."""
        self.post_message(self.Closed())

    def on_key(self, event: events.Key) -> None:
        """Keep what is typed here from the composer."""
        if event.is_printable:
            event.stop()


class HintLine(Static):
    """A line that says which keys there are while a mode of its own takes them."""

    DEFAULT_CSS = """
    HintLine {
        display: none;
        height: 1;
        padding: 0 1;
        background: $panel;
        color: $foreground 75%;
        text-overflow: ellipsis;
        text-wrap: nowrap;
        &.-shown { display: block; }
    }
    """

    def tell(self, words: str) -> None:
        """Say something; nothing takes the line away."""
        self.update(words)
        self.set_class(bool(words), "-shown")
