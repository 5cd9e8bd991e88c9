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

from app.conversation import MessageNode, Role
from app.widgets.lines import fit

_EXCERPT = 400
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
            yield OptionList(id="messages")
            yield Static("Enter opens it in a new tab · Esc leaves", classes="foot")

    def on_resize(self) -> None:
        """Fit the messages' beginnings to the width; the chosen one stays chosen."""
        options = self.query_one(OptionList)
        chosen = options.highlighted
        options.clear_options()
        options.add_options([Option(_row(node, max(20, options.size.width - 4))) for node in self._path])
        options.highlighted = len(self._path) - 1 if chosen is None else chosen

    def action_choose(self) -> None:
        """Fork at the highlighted message."""
        options = self.query_one(OptionList)
        options.action_select()

    @on(OptionList.OptionSelected)
    def _on_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._path[event.option_index].id)


def _row(node: MessageNode, width: int) -> Content:
    name = f"{_NAMES[node.role]:<8}"
    begin = " ".join(node.text[:_EXCERPT].split()) or "(nothing yet)"
    return Content.assemble((name, "$foreground 55%"), fit(begin, width - len(name)))
