"""What is to be done for a chat that its model cannot read as a whole any more."""

from enum import StrEnum
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.widgets.pick_list import PickList
from app.widgets.words import words

_NAME = 16


class RoomChoice(StrEnum):
    """What can be chosen."""

    TRIM = "trim"
    SUMMARISE = "summarise"
    FORK = "fork"
    LARGER = "larger"


class ContextFull(ModalScreen[RoomChoice | None]):
    """Returns what is chosen; None leaves everything as it is."""

    CSS_PATH: ClassVar = ["dialog.tcss", "pick_message.tcss"]
    BINDINGS: ClassVar = [("escape", "dismiss(None)", "Leave it")]

    def __init__(self, why: str, larger: str) -> None:
        """why: how full it is; larger: what a larger context takes."""
        super().__init__()
        self._why = why
        self._rows = {
            RoomChoice.TRIM: ("Trim", "leave the oldest turns out; they stay in the chat"),
            RoomChoice.SUMMARISE: ("Summarise", "the model writes what is read in their place"),
            RoomChoice.FORK: ("Fork", "with a summary, in a new tab; this chat stays as it is"),
            RoomChoice.LARGER: ("Larger context", larger),
        }

    def compose(self) -> ComposeResult:
        """How full the context is, one line a choice, and the keys."""
        with Vertical(classes="dialog"):
            yield Static(words("Room in the context"), classes="heading")
            yield Static(words(self._why), classes="question", id="why")
            yield PickList(
                *(
                    Option(words(f"{name:<{_NAME}}{what}"), id=choice)
                    for choice, (name, what) in self._rows.items()
                )
            )
            yield Static(words("Enter does it · Esc leaves it; what was not sent waits"), classes="foot")

    @on(OptionList.OptionSelected)
    def _on_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(RoomChoice(str(event.option_id)))
