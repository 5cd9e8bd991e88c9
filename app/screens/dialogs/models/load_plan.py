"""What is to make room for a model, before it does."""

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from app.models.fit.plan_words import comes_back_text, placement_text, plan_text
from app.settings.words import device_text
from app.widgets.words import words

if TYPE_CHECKING:
    from engine import LoadPlan


class LoadPlanScreen(ModalScreen[bool | None]):
    """Returns whether the plan is agreed to."""

    CSS_PATH: ClassVar = "../dialog.tcss"
    BINDINGS: ClassVar = [("enter", "dismiss(True)", "Go on"), ("escape", "dismiss(False)", "Leave it")]

    def __init__(self, title: str, plan: "LoadPlan") -> None:
        """title: of the model that is to be loaded."""
        super().__init__()
        self._title, self._plan = title, plan

    def compose(self) -> ComposeResult:
        """The plan in a sentence, what follows of it, and the keys."""
        on = f" of {device_text(self._plan.device)}" if self._plan.device else ""
        with Vertical(classes="dialog"):
            yield Static(words(f"Memory{on} is short for {self._title}"), classes="heading")
            yield Static(words(f"{plan_text(self._plan)}."), classes="question", id="plan")
            if placement := placement_text(self._plan):
                yield Static(words(f"{placement}."), classes="question", id="placement")
            yield Static(words(comes_back_text(self._plan)), classes="question")
            yield Static(words("Enter goes on · Esc leaves everything as it is"), classes="foot")
