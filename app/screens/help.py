"""The help screen: every key, from the action registry."""

from collections.abc import Mapping
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from app.actions import in_groups

_WRITING = (
    ("Enter", "Send", "While the chat is answering the message waits its turn"),
    ("Ctrl+J", "New line", "Also Shift+Enter, Alt+Enter, or \\ before Enter"),
    ("↑  ↓", "Earlier messages", "In the first and last line of the composer"),
    ("Alt+1 … 9", "Go to chat", "Or click its tab; the wheel over the tabs moves along"),
)


class HelpScreen(ModalScreen[None]):
    """Lists the keys; `overrides` are those of the settings."""

    CSS_PATH: ClassVar = ["dialog.tcss", "help.tcss"]
    BINDINGS: ClassVar = [("escape,f1,q,enter", "dismiss", "Close")]

    def __init__(self, overrides: Mapping[str, str]) -> None:
        super().__init__()
        self._overrides = overrides

    def compose(self) -> ComposeResult:
        """One table a group."""
        with Vertical(classes="dialog help"):
            yield Static("Keys", classes="heading")
            with VerticalScroll():
                yield Static(self._table("Writing", _WRITING))
                for group, rows in in_groups(self._overrides):
                    yield Static(self._table(group, rows))
            yield Static(
                "Keys can be changed in the settings file, section [keys] · Esc closes",
                classes="foot",
                markup=False,
            )

    def _table(self, group: str, rows: object) -> Content:
        parts: list[tuple[str, str] | str] = [(f"{group}\n", "bold $primary")]
        for key, title, text in rows:  # type: ignore[attr-defined]
            parts.append((f"  {key:<12}", "$accent"))
            parts.append(f"{title:<22}")
            parts.append((f"{text}\n", "$foreground 62%"))
        return Content.assemble(*parts)
