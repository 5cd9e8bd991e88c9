"""A chat's own settings: system prompt and sampling."""

from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static, TextArea

from app.chat.conversation import Conversation
from app.widgets.words import words
from app.widgets.writing_area import WritingArea
from engine import Priority, RequestError, SamplingParams

_FIELDS: tuple[tuple[str, str, Callable[[str], float | int]], ...] = (
    ("temperature", "0 is greedy, higher is more varied", float),
    ("top_k", "most probable to keep; 0 keeps all", int),
    ("top_p", "keep the likeliest up to this sum", float),
    ("min_p", "drop below this share of the best", float),
    ("repetition_penalty", "1 is off", float),
    ("frequency_penalty", "0 is off", float),
    ("presence_penalty", "0 is off", float),
    ("seed", "empty: a new one each time", int),
    ("max_tokens", "of an answer; empty: no limit", int),
)
_PRIORITY_HINT = "low, normal or high"


class TabSettings(ModalScreen[bool | None]):
    """Writes the changes into the conversation; returns True when it did."""

    CSS_PATH: ClassVar = ["dialog.tcss", "tab_settings.tcss"]
    BINDINGS: ClassVar = [("escape", "dismiss(None)", "Cancel"), ("ctrl+s,f8", "save", "Save")]

    def __init__(self, conversation: Conversation) -> None:
        super().__init__()
        self.VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall")]
        self._conversation = conversation

    def compose(self) -> ComposeResult:
        """The system prompt above, one line a number below."""
        with Vertical(classes="dialog"):
            yield Static("Settings of this chat", classes="heading")
            yield Static("System prompt", classes="label")
            yield WritingArea(
                self._conversation.system_prompt, id="system", tab_behavior="focus", compact=True
            )
            for name, hint in [*((name, hint) for name, hint, _ in _FIELDS), ("priority", _PRIORITY_HINT)]:
                with Horizontal(classes="field"):
                    yield Static(words(name.replace("_", " ")), classes="name")
                    yield Input(self._value(name), id=name, compact=True)
                    yield Static(words(hint), classes="hint")
            yield Static("", id="problem", classes="problem", markup=False)
            with Horizontal(classes="buttons"):
                yield Button("Save", id="save", compact=True)
                yield Button("Cancel", id="cancel", compact=True)

    def _value(self, name: str) -> str:
        source = self._conversation if name in ("max_tokens", "priority") else self._conversation.sampling
        value = getattr(source, name)
        return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    def action_save(self) -> None:
        """Check every value and keep them, or say which one is wrong."""
        try:
            values = {name: self._read(name, kind) for name, _, kind in _FIELDS}
            limit = values.pop("max_tokens")
            if limit is not None and limit < 1:
                raise ValueError("max tokens: give at least 1, or nothing")
            priority = self._read_priority()
            sampling = SamplingParams(
                **values,  # type: ignore[arg-type]
                logit_bias=self._conversation.sampling.logit_bias,
            )
        except (ValueError, RequestError) as error:
            self.query_one("#problem", Static).update(words(str(error)))
            return
        self._conversation.sampling, self._conversation.priority = sampling, priority
        self._conversation.max_tokens = None if limit is None else int(limit)
        self._conversation.system_prompt = self.query_one("#system", TextArea).text
        self.dismiss(True)

    def _read(self, name: str, kind: Callable[[str], float | int]) -> float | int | None:
        text = self.query_one(f"#{name}", Input).value.strip()
        if not text and name in ("seed", "max_tokens"):
            return None
        try:
            return kind(text)
        except ValueError as error:
            what = "a whole number" if kind is int else "a number"
            raise ValueError(f"{name.replace('_', ' ')}: {text!r} is not {what}") from error

    def _read_priority(self) -> Priority:
        text = self.query_one("#priority", Input).value.strip().lower()
        try:
            return Priority(text)
        except ValueError as error:
            raise ValueError(f"priority: {text!r} is not one of {', '.join(Priority)}") from error

    @on(Input.Submitted)
    def _on_submitted(self) -> None:
        self.action_save()

    @on(Button.Pressed)
    def _on_button(self, event: Button.Pressed) -> None:
        if event.button.id == "save":
            self.action_save()
        else:
            self.dismiss(None)
