"""Asking for a chat's tags."""

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from app.chat.marks import tags_from


class TagsScreen(ModalScreen[tuple[str, ...] | None]):
    """Returns the tags, or None."""

    CSS_PATH: ClassVar = "dialog.tcss"
    BINDINGS: ClassVar = [("escape", "dismiss(None)", "Cancel")]

    def __init__(self, tags: Sequence[str]) -> None:
        super().__init__()
        self._tags = tags

    def compose(self) -> ComposeResult:
        """One line to write in."""
        with Vertical(classes="dialog"):
            yield Static("Tags, with spaces between them", classes="heading")
            yield Input(" ".join(self._tags), placeholder="work ideas", compact=True)
            yield Static("Enter sets them · Esc leaves them · #work in the list finds them", classes="foot")

    @on(Input.Submitted)
    def _on_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(tags_from(event.value.split()))
