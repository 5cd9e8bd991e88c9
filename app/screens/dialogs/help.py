"""The help screen: every key, from the action registry."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from app.settings.actions import ACTIONS, GROUPS, key_label, keys_of, label_of, ways
from app.terminal.controls import clean
from app.widgets.words import words

_WRITING = (
    ("/", "Command or prompt", "Runs any action by its name, or puts in a prompt of yours"),
    ("@", "File, folder or chat", "Attaches its text as a chip; @chat: lists chats"),
    (
        "Ctrl+W",
        "Delete to blank",
        "Alt+Backspace, Alt+D: words; Ctrl+U, Ctrl+K: to an end",
    ),
    ("Ctrl+Y", "Put back", "What these keys deleted last"),
    ("Ctrl+_", "Undo", "Alt+Z does it again"),
    ("↑  ↓", "Earlier messages", "In the first and last line of the composer"),
    ("Alt+1 … 9", "Go to chat", "Or click its tab; the wheel over the tabs moves along"),
)
_NUMBERS = (
    ("tok/s", "Speed", "Tokens a second of this chat's answer"),
    ("ctx", "Context", "Tokens of this chat, and the most there can be"),
    ("kv", "Context memory", "How much of it the answers that run now hold"),
)
_KEY_WIDTH, _TITLE_WIDTH = 14, 22
_LEAST_TEXT, _INDENT = 20, 4
"""With less room beside key and title what they do stands below them."""

_Rows = Iterable[tuple[str, str, str]]


class HelpScreen(ModalScreen[None]):
    """Lists the keys, and before them what was wrong at the start.

    `overrides` are the settings' keys, `writing` what sends and what begins a line, `others` those that do
    what the one of them does that is not Enter.
    """

    CSS_PATH: ClassVar = ["dialog.tcss", "help.tcss"]
    BINDINGS: ClassVar = [("escape,f1,q,enter", "dismiss", "Close")]

    def __init__(
        self,
        overrides: Mapping[str, str],
        *,
        writing: tuple[str, str] = ("Enter", "Ctrl+J"),
        others: Sequence[str] = (),
        warnings: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._warnings = warnings
        self._sending, self._newline = writing
        self._others = [key_label(key) for key in others]
        self._overrides = overrides

    def compose(self) -> ComposeResult:
        """One table a group."""
        with Vertical(classes="dialog help"):
            yield Static("Keys", classes="heading")
            with VerticalScroll():
                if self._warnings:
                    yield Static(self._warning_lines(), id="warnings")
                for _ in self._groups():
                    yield Static()
            yield Static(
                words(f"{label_of('settings', self._overrides)} changes keys and settings · Esc closes"),
                classes="foot",
                markup=False,
            )

    def on_resize(self) -> None:
        """Wrap what the keys do to the width that is there."""
        self.call_after_refresh(self._fill)

    def _fill(self) -> None:
        scroll = self.query_one(VerticalScroll)
        width = scroll.outer_size.width - scroll.styles.scrollbar_size_vertical
        tables = scroll.query(Static).exclude("#warnings")
        for table, (group, rows) in zip(tables, self._groups(), strict=True):
            table.update(_table(group, rows, width))

    def _warning_lines(self) -> Content:
        lines = "".join(f"  {clean(warning)}\n" for warning in self._warnings)
        return Content.assemble(("What was wrong at the start\n", "bold $warning"), lines)

    def _rows(self, group: str) -> list[tuple[str, str, str]]:
        """The actions of a group, and how each is reached besides: without a function key, too."""
        return [
            (
                key_label(keys_of(action, self._overrides)),
                action.title,
                _sentence(action.help, ways(action, self._overrides)),
            )
            for action in ACTIONS
            if action.group == group
        ]

    def _groups(self) -> list[tuple[str, _Rows]]:
        also = f"Also {', '.join(self._others)}" if self._others else ""
        to_send, to_go_on = (also, "") if self._newline == "Enter" else ("", also)
        slash = f"or \\ before {self._sending}"
        writing = [
            (
                self._sending,
                "Send",
                _sentence("While the chat is answering the message waits its turn", to_send),
            ),
            (self._newline, "New line", f"{to_go_on}, {slash}" if to_go_on else slash.capitalize()),
            *_WRITING,
        ]
        groups = {group: self._rows(group) for group in GROUPS}
        groups["Writing"] = writing + groups["Writing"]
        return [*groups.items(), ("Status line", _NUMBERS)]


def _sentence(*parts: str) -> str:
    return ". ".join(part for part in parts if part)


def _table(group: str, rows: _Rows, width: int) -> Content:
    """A heading and a line for each row, its last column wrapped to what is left of `width` cells."""
    parts: list[tuple[str, str] | str] = [(f"{group}\n", "bold $primary")]
    left = _KEY_WIDTH + _TITLE_WIDTH
    for key, title, text in rows:
        beside = width - left >= _LEAST_TEXT
        break_ = "\n" + " " * (left if beside else _INDENT)
        lines = textwrap.wrap(text, width - left if beside else max(1, width - _INDENT))
        parts.append((f"  {key}".ljust(_KEY_WIDTH), "$accent"))
        parts.append(title.ljust(_TITLE_WIDTH) if beside else title)
        text = break_.join(lines)
        parts.append((f"{text if beside or not text else break_ + text}\n", "$foreground 62%"))
    return Content.assemble(*parts)
