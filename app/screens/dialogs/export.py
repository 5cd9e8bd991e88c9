"""Choosing what a chat is written as."""

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.exchange.formats import Format
from app.widgets.pick_list import PickList
from app.widgets.words import words

_WORDS = {
    Format.MARKDOWN: "Markdown, the branch that is shown",
    Format.HTML: "HTML, one page to read or to print",
    Format.JSON: "JSON, everything: tui-chat import reads it",
}


class ExportScreen(ModalScreen[Format | None]):
    """Returns the format, or None."""

    CSS_PATH: ClassVar = "dialog.tcss"
    BINDINGS: ClassVar = [("escape", "dismiss(None)", "Cancel")]

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title_text = title

    def compose(self) -> ComposeResult:
        """One line a format."""
        with Vertical(classes="dialog"):
            yield Static(words(f"Export “{self._title_text}” as"), classes="heading")
            yield PickList(
                *(Option(words(text), id=str(form)) for form, text in _WORDS.items()), compact=True
            )
            yield Static("Enter writes the file and says where · Esc leaves", classes="foot")

    @on(OptionList.OptionSelected)
    def _on_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(list(_WORDS)[event.option_index])
