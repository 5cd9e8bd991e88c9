"""How much of a model's context chats may use: what that costs is shown while it is chosen."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from app.screens.dialogs.models.slider import Slider
from app.settings.words import size_text
from app.widgets.words import words

LEAST = 256
_FOOT = "← → or figures choose · Enter takes · Esc leaves"
_MOST_DIGITS = 8


@dataclass(frozen=True, slots=True)
class ContextFacts:
    """What the dialog knows of a model."""

    title: str
    now: int
    longest: int
    """What the model's file allows."""
    memory: int
    """Bytes of context memory, of all models."""
    cost: Callable[[int], int]
    """Bytes that a chat of so many tokens takes."""
    longest_chat: int = 0
    """Tokens of the longest chat that is open with it."""

    @property
    def fits(self) -> int:
        """The longest chat that context memory holds."""
        return bisect_right(range(self.longest + 1), self.memory, key=self.cost) - 1


def steps_to(longest: int) -> list[int]:
    """Return what the arrows go through: 256, 384, 512, 768 and so on, up to all of it."""
    steps, step = [], LEAST
    while step < longest:
        steps += [step, step * 3 // 2]
        step *= 2
    return [*(step for step in steps if step < longest), longest]


def cost_text(facts: ContextFacts, tokens: int) -> Content:
    """Say what a chat of so many tokens takes, and what follows of it."""
    cost, memory = facts.cost(tokens), size_text(facts.memory)
    chats = facts.memory // cost if cost else 0
    parts: list[str | tuple[str, str]] = [(f"{tokens:,} tokens", "bold")]
    parts.append(f" of {facts.longest:,} that the model reads\n")
    takes = f"A chat this long takes {size_text(cost)} of the {memory} of context memory"
    if tokens > facts.fits:
        parts.append((f"{takes}, which holds {facts.fits:,} tokens: more is not read.", "$warning"))
    else:
        fit = "one such chat fits" if chats == 1 else f"{chats:,} such chats fit"
        parts.append(f"{takes}: {fit}.")
    if tokens < facts.longest_chat:
        begun = f"\nA chat here has {facts.longest_chat:,} tokens: an answer in it ends, and what is left out"
        parts.append((f"{begun} is asked.", "$warning"))
    return Content.assemble(*parts)


class ContextLength(ModalScreen[int | None]):
    """Returns how many tokens of context were chosen."""

    CSS_PATH: ClassVar = ["../dialog.tcss", "context_length.tcss"]
    BINDINGS: ClassVar = [
        ("escape", "dismiss(None)", "Leave it"),
        ("enter", "take", "Take it"),
        ("left,down", "step(-1)", "Less"),
        ("right,up", "step(1)", "More"),
        ("home", "go_to(0)", "Least"),
        ("end", "go_to(-1)", "All"),
        ("backspace", "erase", "Erase"),
    ]

    def __init__(self, facts: ContextFacts) -> None:
        super().__init__()
        self._facts = facts
        self._steps = steps_to(facts.longest)
        self._typed = ""
        self.tokens = facts.now
        """What is chosen now."""

    def compose(self) -> ComposeResult:
        """The slider, what it costs, and the keys."""
        with Vertical(classes="dialog"):
            yield Static(words(f"Context of {self._facts.title}"), classes="heading")
            yield Slider(self._steps, self._facts.fits, id="slider")
            yield Static(id="cost")
            yield Static(_FOOT, classes="foot")

    def on_mount(self) -> None:
        """Show what is chosen now."""
        self._choose(self.tokens)

    def on_key(self, event: events.Key) -> None:
        """Take figures."""
        if event.character is not None and event.character in "0123456789":
            event.stop()
            self._type((self._typed + event.character)[:_MOST_DIGITS])

    def action_erase(self) -> None:
        """Take back the last figure."""
        self._type((self._typed or str(self.tokens))[:-1])

    def action_step(self, step: int) -> None:
        """Go to the next step."""
        at = bisect_left(self._steps, self.tokens) - 1 if step < 0 else bisect_right(self._steps, self.tokens)
        self._choose(self._steps[min(max(0, at), len(self._steps) - 1)])

    def action_go_to(self, index: int) -> None:
        """Go to the least or to all."""
        self._choose(self._steps[index])

    def action_take(self) -> None:
        """Return it; figures that are too few or too many become what can be chosen."""
        self.dismiss(min(max(min(LEAST, self._facts.longest), self.tokens), self._facts.longest))

    @on(Slider.Moved)
    def _on_moved(self, event: Slider.Moved) -> None:
        self._choose(event.value)

    def _type(self, figures: str) -> None:
        self._typed = figures
        self._show(min(int(figures or 0), self._facts.longest))

    def _choose(self, tokens: int) -> None:
        self._typed = ""
        self._show(tokens)

    def _show(self, tokens: int) -> None:
        self.tokens = tokens
        self.query_one(Slider).show(tokens)
        self.query_one("#cost", Static).update(cost_text(self._facts, tokens))
