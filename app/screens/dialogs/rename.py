"""Asking for a chat's title."""

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from app.terminal.controls import clean


class RenameScreen(ModalScreen[str | None]):
    """Returns the new title, or None."""

    CSS_PATH: ClassVar = "dialog.tcss"
    BINDINGS: ClassVar = [("escape", "dismiss(None)", "Cancel")]

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title_text = title

    def compose(self) -> ComposeResult:
        """One line to write in."""
        with Vertical(classes="dialog"):
            yield Static("Chat title", classes="heading")
            yield Input(clean(self._title_text), select_on_focus=True, compact=True)
            yield Static("Enter renames · Esc leaves it", classes="foot")

    @on(Input.Submitted)
    def _on_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(" ".join(event.value.split()) or None)
