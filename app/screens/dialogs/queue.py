"""The messages that wait for an answer to end: they can be written differently, dropped or sent now."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.terminal.controls import clean
from app.widgets.lines import fit
from app.widgets.pick_list import PickList

_EXCERPT = 400


class Wanted(StrEnum):
    """What is to become of a message that waits."""

    EDIT = "edit"
    SEND = "send"


@dataclass(frozen=True, slots=True)
class Decision:
    """What the reader wants of one message."""

    text: str
    wanted: Wanted


class QueueScreen(ModalScreen[Decision | None]):
    """Returns what is to become of a message; dropping goes on with the others.

    `waiting` returns the messages that still wait, `drop` takes one out.
    """

    CSS_PATH: ClassVar = ["dialog.tcss", "branches.tcss"]
    BINDINGS: ClassVar = [
        ("escape", "dismiss(None)", "Leave"),
        ("delete", "drop", "Drop"),
        ("s", "send", "Send now"),
    ]

    def __init__(self, waiting: Callable[[], Sequence[str]], drop: Callable[[str], object]) -> None:
        super().__init__()
        self._waiting, self._drop = waiting, drop
        self._texts: Sequence[str] = ()

    def compose(self) -> ComposeResult:
        """One line a message."""
        with Vertical(classes="dialog"):
            yield Static("Messages that wait for the answer to end", classes="heading")
            yield PickList(id="waiting")
            yield Static("Enter edits · S sends now · Del drops · Esc leaves", classes="foot")

    def on_mount(self) -> None:
        """List them."""
        self._fill(0)

    def on_resize(self) -> None:
        """Use the width."""
        self.call_after_refresh(lambda: self._fill(self.query_one(OptionList).highlighted or 0))

    def _fill(self, highlighted: int) -> None:
        options = self.query_one(OptionList)
        self._texts = list(self._waiting())
        width = max(1, options.scrollable_content_region.width - 4)
        options.clear_options()
        for number, text in enumerate(self._texts, 1):
            begin = fit(clean(" ".join(text[:_EXCERPT].split())), width)
            row = Content.assemble((f"{number:>2}  ", "$foreground 50%"), begin)
            options.add_option(Option(row))
        options.highlighted = min(highlighted, len(self._texts) - 1) if self._texts else None

    def action_drop(self) -> None:
        """Drop the highlighted message."""
        at = self.query_one(OptionList).highlighted
        if at is None:
            return
        self._drop(self._texts[at])
        if not self._waiting():
            self.dismiss(None)
        else:
            self._fill(at)

    def action_send(self) -> None:
        """Send the highlighted message now."""
        self._decide(Wanted.SEND)

    @on(OptionList.OptionSelected)
    def _on_selected(self) -> None:
        self._decide(Wanted.EDIT)

    def _decide(self, wanted: Wanted) -> None:
        at = self.query_one(OptionList).highlighted
        if at is not None:
            self.dismiss(Decision(self._texts[at], wanted))
