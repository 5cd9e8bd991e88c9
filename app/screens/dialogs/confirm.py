"""A question with two answers."""

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from app.widgets.words import words


class ConfirmScreen(ModalScreen[bool | None]):
    """Returns True for the first answer; Escape is the second."""

    CSS_PATH: ClassVar = "dialog.tcss"
    BINDINGS: ClassVar = [
        ("escape", "dismiss(False)", "No"),
        ("left", "app.focus_previous"),
        ("right", "app.focus_next"),
    ]
    AUTO_FOCUS = "#no"

    def __init__(self, question: str, yes: str, no: str) -> None:
        super().__init__()
        self._question, self._yes, self._no = question, yes, no

    def compose(self) -> ComposeResult:
        """Question and buttons."""
        with Vertical(classes="dialog"):
            yield Static(words(self._question), classes="question")
            with Horizontal(classes="buttons"):
                yield Button(words(self._yes), id="yes", compact=True)
                yield Button(words(self._no), id="no", compact=True)

    @on(Button.Pressed)
    def _on_button(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")
