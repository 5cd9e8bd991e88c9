"""A chat's own settings: system prompt and sampling."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static, TextArea

from app.chat.conversation import Conversation
from app.models.backends.port import ChatModel
from app.models.recommended import FROM_OLLAMA, LIMIT, Recommended, recommended_for
from app.widgets.words import words
from app.widgets.writing.writing_area import WritingArea
from engine import Priority, RequestError, SamplingParams, Thinking

_FIELDS: tuple[tuple[str, str, Callable[[str], float | int]], ...] = (
    ("temperature", "0 is greedy, higher is more varied", float),
    ("top_k", "most probable to keep; 0 keeps all", int),
    ("top_p", "keep the likeliest up to this sum", float),
    ("min_p", "drop below this share of the best", float),
    ("repetition_penalty", "1 is off", float),
    ("frequency_penalty", "0 is off", float),
    ("presence_penalty", "0 is off", float),
    ("seed", "empty: a new one each time", int),
    (LIMIT, "of an answer; 0: no limit", int),
)
_THINKING_HINT = "auto, on, off, an effort, a budget in tokens"
_PRIORITY_HINT = "low, normal or high"


class TabSettings(ModalScreen[bool | None]):
    """Writes the changes into the conversation; returns True when it did."""

    CSS_PATH: ClassVar = ["dialog.tcss", "tab_settings.tcss"]
    BINDINGS: ClassVar = [("escape", "dismiss(None)", "Cancel"), ("ctrl+s,f8", "save", "Save")]

    def __init__(self, conversation: Conversation, model: ChatModel | None = None) -> None:
        """model: the one whose chat template says what it understands of thinking."""
        super().__init__()
        self.VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall")]
        self._conversation = conversation
        self._model = model
        self._recommended = Recommended()
        self._shown: dict[str, str] = {}
        """What the fields held when nobody had written into them."""

    def compose(self) -> ComposeResult:
        """The system prompt above, one line a number below."""
        with Vertical(classes="dialog"):
            yield Static("Settings of this chat", classes="heading")
            yield Static("System prompt", classes="label")
            yield WritingArea(
                self._conversation.system_prompt, id="system", tab_behavior="focus", compact=True
            )
            others = (("thinking", _THINKING_HINT), ("priority", _PRIORITY_HINT))
            for name, hint in [*((name, hint) for name, hint, _ in _FIELDS), *others]:
                with Horizontal(classes="field"):
                    yield Static(words(name.replace("_", " ")), classes="name")
                    yield Input(self._value(name), id=name, compact=True)
                    yield Static(words(hint), classes="hint", id=f"hint_{name}")
            yield Static("", id="problem", classes="problem", markup=False)
            with Horizontal(classes="buttons"):
                yield Button("Save", id="save", compact=True)
                yield Button("Cancel", id="cancel", compact=True)

    def on_mount(self) -> None:
        """Read what the model's makers recommend, off the UI's thread."""
        self._shown = {name: self._value(name) for name, _, _ in _FIELDS}
        if self._conversation.model_path is not None:
            self.run_worker(self._show_recommended(Path(self._conversation.model_path)))
        if self._model is not None:
            self.run_worker(self._show_support(self._model), exit_on_error=False)

    async def _show_support(self, model: ChatModel) -> None:
        support = await asyncio.to_thread(lambda: model.thinking_support)
        hint = ", ".join(support.choices) if len(support.choices) > 1 else "the template has no switch for it"
        budget = ", or a budget in tokens" if support.has_thoughts else ""
        self.query_one("#hint_thinking", Static).update(words(hint + budget))

    async def _show_recommended(self, model: Path) -> None:
        found = self._recommended = await asyncio.to_thread(recommended_for, model)
        if found.system.strip():
            self.query_one("#system", TextArea).placeholder = f"from {FROM_OLLAMA}: {found.system.strip()}"
        for name, hint, _ in _FIELDS:
            if name not in found.values:
                continue
            said = f"{found.values[name]:g}, from {found.sources[name]}"
            field = self.query_one(f"#{name}", Input)
            if name in self._own:
                hint = f"empty: {said}"
            else:
                hint = f"from {found.sources[name]}; {hint}"
                if field.value == self._shown[name]:
                    field.value = f"{found.values[name]:g}"
                self._shown[name] = f"{found.values[name]:g}"
            self.query_one(f"#hint_{name}", Static).update(words(hint))

    def _value(self, name: str) -> str:
        own = (LIMIT, "priority", "thinking")
        source = self._conversation if name in own else self._conversation.sampling
        value = getattr(source, name)
        return "0" if name == LIMIT and value is None and name in self._own else _text(value)

    @property
    def _own(self) -> frozenset[str]:
        """Which values the reader has set; chats of before say so of a limit by having one."""
        limited = self._conversation.max_tokens is not None
        return self._conversation.chosen | ({LIMIT} if limited else set())

    def action_save(self) -> None:
        """Check every value and keep them, or say which one is wrong."""
        try:
            chosen = self._chosen()
            values = {name: self._read(name, kind) for name, _, kind in _FIELDS}
            limit = values.pop(LIMIT)
            # What is only recommended stays out of the chat: another model recommends something else.
            left = self._recommended.values.keys() - chosen - self._conversation.chosen - {LIMIT}
            values |= {name: getattr(self._conversation.sampling, name) for name in left}
            if limit is not None and limit < 0:
                raise ValueError("max tokens: give at least 1, or 0 for no limit")
            priority = self._read_priority()
            thinking = self._read_thinking()
            sampling = SamplingParams(
                **values,  # type: ignore[arg-type]
                logit_bias=self._conversation.sampling.logit_bias,
            )
        except (ValueError, RequestError) as error:
            self.query_one("#problem", Static).update(words(str(error)))
            return
        self._conversation.sampling, self._conversation.priority = sampling, priority
        self._conversation.chosen = chosen
        self._conversation.thinking = thinking
        self._conversation.max_tokens = int(limit) if limit and LIMIT in chosen else None
        self._conversation.system_prompt = self.query_one("#system", TextArea).text
        self.dismiss(True)

    def _written(self, name: str) -> str:
        return self.query_one(f"#{name}", Input).value.strip()

    def _chosen(self) -> frozenset[str]:
        """Which values the reader has set: those of before, and what is written otherwise than it was shown.

        An empty field takes what is recommended again.
        """
        written = {name: self._written(name) for name, _, _ in _FIELDS}
        changed = {name for name, text in written.items() if text != self._shown[name]}
        open_to = self._recommended.values.keys() | {LIMIT}
        given_up = {name for name, text in written.items() if not text and name in open_to}
        return (self._own | changed) - given_up

    def _read(self, name: str, kind: Callable[[str], float | int]) -> float | int | None:
        text = self._written(name)
        if not text and name in ("seed", LIMIT):
            return None
        if not text and name in self._recommended.values:
            text = _text(getattr(SamplingParams(), name))
        try:
            return kind(text)
        except ValueError as error:
            what = "a whole number" if kind is int else "a number"
            raise ValueError(f"{name.replace('_', ' ')}: {text!r} is not {what}") from error

    def _read_thinking(self) -> Thinking:
        try:
            return Thinking.parse(self._written("thinking") or str(Thinking()))
        except ValueError as error:
            raise ValueError(f"thinking must be {error}") from error

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


def _text(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
