"""Choosing the message that a fork of a chat goes on from."""

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.chat.conversation import MessageNode, Role
from app.widgets.lines import fit
from app.widgets.pick_list import PickList

_EXCERPT = 400
_WIDTH = 56
"""Cells of a message's beginning: one line also where the terminal has 80 columns."""
_NAMES = {Role.USER: "You", Role.ASSISTANT: "Answer", Role.SYSTEM: "System"}


class ForkScreen(ModalScreen[str | None]):
    """Returns the id of the last message that the fork keeps, or None."""

    CSS_PATH: ClassVar = ["dialog.tcss", "fork.tcss"]
    BINDINGS: ClassVar = [("escape", "dismiss(None)", "Cancel"), ("f9", "choose", "Fork")]

    def __init__(self, path: Sequence[MessageNode]) -> None:
        """`path` are the shown messages, at least one."""
        super().__init__()
        self._path = path

    def compose(self) -> ComposeResult:
        """One line a message; the last one is chosen."""
        with Vertical(classes="dialog"):
            yield Static("Fork: go on from which message?", classes="heading")
            yield PickList(*(Option(_row(node)) for node in self._path), id="messages")
            yield Static("Enter opens it in a new tab · Esc leaves", classes="foot")

    def on_mount(self) -> None:
        """Choose the last message."""
        self.query_one(OptionList).highlighted = len(self._path) - 1

    def action_choose(self) -> None:
        """Fork at the highlighted message."""
        self.query_one(OptionList).action_select()

    @on(OptionList.OptionSelected)
    def _on_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._path[event.option_index].id)


def _row(node: MessageNode) -> Content:
    begin = " ".join(node.text[:_EXCERPT].split()) or "(nothing yet)"
    return Content(f"{_NAMES[node.role]:<8}{fit(begin, _WIDTH)}")
