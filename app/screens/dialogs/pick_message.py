"""Choosing one of the messages that a chat shows."""

from collections.abc import Sequence
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.chat.conversation import MessageNode, Role
from app.terminal.controls import clean
from app.widgets.pick_list import PickList
from app.widgets.words import words

_EXCERPT = 400
_NAMES = {Role.USER: "You", Role.ASSISTANT: "Answer", Role.SYSTEM: "System", Role.TOOL: "Tool"}


class PickMessage(ModalScreen[str | None]):
    """Returns the id of a message, or None."""

    CSS_PATH: ClassVar = ["dialog.tcss", "pick_message.tcss"]
    BINDINGS: ClassVar = [("escape", "dismiss(None)", "Cancel")]

    def __init__(self, path: Sequence[MessageNode], heading: str, foot: str, keys: str) -> None:
        """`path` are the shown messages, at least one; `keys` choose as Enter does."""
        super().__init__()
        self._path = path
        self._heading, self._foot = heading, foot
        self._keys = frozenset(key.strip() for key in keys.split(","))

    def compose(self) -> ComposeResult:
        """One line a message; the last one is chosen."""
        with Vertical(classes="dialog"):
            yield Static(words(self._heading), classes="heading")
            yield PickList(*(Option(_row(node)) for node in self._path), id="messages")
            yield Static(words(self._foot), classes="foot")

    def on_mount(self) -> None:
        """Choose the last message."""
        self.query_one(OptionList).highlighted = len(self._path) - 1

    def on_key(self, event: events.Key) -> None:
        """Choose by the keys that have opened the list, too."""
        if event.key in self._keys:
            event.stop()
            self.query_one(OptionList).action_select()

    @on(OptionList.OptionSelected)
    def _on_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._path[event.option_index].id)


def _row(node: MessageNode) -> Content:
    begin = " ".join(node.text[:_EXCERPT].split()) or "(nothing yet)"
    return Content(f"{_NAMES[node.role]:<8}{clean(begin)}")
