"""The branches of a chat as a tree, to go to one of them."""

import time
from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.chat.answers.branches import Branch
from app.chat.conversation import Role
from app.models.builtin import model_title
from app.settings.words import age_text
from app.widgets.lines import fit
from app.widgets.pick_list import PickList

_NAMES = {Role.USER: "You", Role.ASSISTANT: "Answer", Role.SYSTEM: "System", Role.TOOL: "Tool"}
_EXCERPT = 400
_LEAST_TEXT = 12
_RIGHT, _AGE = 26, 10
"""Cells on the right for what a branch holds and its age, and for the age alone."""


class BranchesScreen(ModalScreen[str | None]):
    """Returns the id of the message that the chosen branch ends with, or None."""

    CSS_PATH: ClassVar = ["dialog.tcss", "branches.tcss"]
    BINDINGS: ClassVar = [("escape", "dismiss(None)", "Cancel")]

    def __init__(self, branches: Sequence[Branch]) -> None:
        """branches: at least one."""
        super().__init__()
        self._branches = branches

    def compose(self) -> ComposeResult:
        """One line a branch."""
        with Vertical(classes="dialog"):
            yield Static("Branches of this chat", classes="heading")
            yield PickList(*(Option("") for _ in self._branches), id="branches")
            yield Static("● shown now · Enter goes there · Esc leaves", classes="foot")

    def on_mount(self) -> None:
        """Choose the end of what the chat shows."""
        shown = [at for at, branch in enumerate(self._branches) if branch.shown]
        self.query_one(OptionList).highlighted = shown[-1] if shown else 0

    def on_resize(self) -> None:
        """Use the width."""
        self.call_after_refresh(self._fill)

    def _fill(self) -> None:
        options = self.query_one(OptionList)
        width = options.scrollable_content_region.width
        for at, branch in enumerate(self._branches):
            options.replace_option_prompt_at_index(at, _row(branch, width))

    @on(OptionList.OptionSelected)
    def _on_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._branches[event.option_index].last.id)


def _row(branch: Branch, width: int) -> Content:
    node = branch.first
    mark = "● " if branch.shown else "○ "
    name = f"{_NAMES[node.role]}  "
    more = f"{branch.messages} messages" if branch.messages > 1 else ""
    if node.role is Role.ASSISTANT and not more and node.model:
        more = model_title(node.model)
    age = age_text(time.time() - branch.last.created)
    head = len(branch.guide) + len(mark) + len(name)
    wide = width - head - _RIGHT - 1 >= 2 * _LEAST_TEXT
    end = _RIGHT if wide else _AGE
    right = f"{fit(more, _RIGHT - 9).strip()} · {age}" if more and wide else age
    room = max(_LEAST_TEXT, width - head - end - 1)
    text = " ".join((node.text or node.reasoning)[:_EXCERPT].split()) or "(nothing yet)"
    shown = "$foreground" if branch.shown else "$foreground 70%"
    return Content.assemble(
        (branch.guide, "$foreground 40%"),
        (mark, "$accent" if branch.shown else "$foreground 40%"),
        (name, "$foreground 62%"),
        (fit(text, room), shown),
        (" " + fit(right, end, right=True), "$foreground 50%"),
    )
