"""Choosing the link of an answer that is opened."""

from collections.abc import Sequence
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

_LABEL, _ADDRESS = 24, 46
"""Cells of a label and an address: one line also where the terminal has 80 columns."""


class LinksScreen(ModalScreen[str | None]):
    """Returns the address to open, or None."""

    CSS_PATH: ClassVar = ["../../dialogs/dialog.tcss", "links.tcss"]
    BINDINGS: ClassVar = [("escape,alt+l", "dismiss(None)", "Cancel")]

    def __init__(self, links: Sequence[tuple[str, str]]) -> None:
        """links: labels and addresses, at least one."""
        super().__init__()
        self._links = links

    def compose(self) -> ComposeResult:
        """One line a link, and the whole address of the one that is highlighted."""
        with Vertical(classes="dialog"):
            yield Static("Links of this answer", classes="heading")
            yield PickList(*(Option(_row(number, *link)) for number, link in enumerate(self._links, 1)))
            yield Static(id="address", classes="foot", markup=False)
            yield Static("Enter opens it · Esc leaves", classes="foot")

    def on_mount(self) -> None:
        """Begin with the first."""
        self.query_one(OptionList).highlighted = 0

    @on(OptionList.OptionHighlighted)
    def _on_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        words = clean(self._links[event.option_index][1])
        self.query_one("#address", Static).update(words)

    @on(OptionList.OptionSelected)
    def _on_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._links[event.option_index][1])


def _row(number: int, label: str, address: str) -> Content:
    shown = " ".join(clean(label).split())
    where = "" if shown == address else fit(clean(address), _ADDRESS)
    return Content(f"{number:>2}  {fit(shown, _LABEL if where else _LABEL + _ADDRESS):<{_LABEL}}  {where}")
