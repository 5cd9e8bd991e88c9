"""Every action by two letters: its group's and its own."""

from collections.abc import Mapping
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.settings.actions import LEADER, Action, action_letters, group_letters, keys_of, label_of, named
from app.widgets.lines import fit
from app.widgets.pick_list import PickList
from app.widgets.words import words

_TITLE, _PADDING = 24, 2
_LEAST_ROWS, _AROUND = 3, 7
"""Rows of the list at least, and those of the screen that are not its own."""
_GROUPS_FOOT = "A letter opens a group · Esc closes"
_ACTIONS_FOOT = "A letter does it · Backspace goes back · Esc closes"


class WhichKey(ModalScreen[str | None]):
    """Shows groups, then the actions of one; returns the id of the one that was chosen."""

    CSS_PATH: ClassVar = ["dialog.tcss", "which_key.tcss"]
    BINDINGS: ClassVar = [("escape", "dismiss(None)", "Close"), ("backspace", "back", "Back")]

    def __init__(self, overrides: Mapping[str, str]) -> None:
        super().__init__()
        self._overrides = overrides
        self._actions: dict[str, Action] = {}
        """Those of the open group; none while groups are shown."""

    def compose(self) -> ComposeResult:
        """A list at the bottom, where the eyes are."""
        with Vertical(classes="dialog which-key"):
            yield Static(id="group", classes="heading", markup=False)
            yield PickList(id="letters")
            yield Static(id="foot", classes="foot", markup=False)

    def on_mount(self) -> None:
        """Show the groups."""
        self.action_back()
        self.query_one(PickList).focus()

    def on_resize(self) -> None:
        """Lay the rows out for the new width."""
        self.call_after_refresh(self._fill)

    def on_key(self, event: events.Key) -> None:
        """Take a letter, also with Ctrl still held."""
        letter = event.key.removeprefix("ctrl+")
        if letter in self._letters:
            event.stop()
            self._choose(letter)
        elif event.key == leader_key(self._overrides):
            event.stop()
            self.dismiss(None)

    @property
    def _letters(self) -> list[str]:
        return list(self._actions or group_letters())

    @on(OptionList.OptionSelected)
    def _on_selected(self, event: OptionList.OptionSelected) -> None:
        self._choose(self._letters[event.option_index])

    def _choose(self, letter: str) -> None:
        if self._actions:
            self.dismiss(self._actions[letter].id)
        else:
            self._actions = action_letters(group_letters()[letter])
            self._fill()

    def action_back(self) -> None:
        """Show the groups again."""
        self._actions = {}
        self._fill()

    def _fill(self) -> None:
        listed = self.query_one(PickList)
        width = max(20, listed.scrollable_content_region.width - _PADDING)
        if self._actions:
            rows = [(letter, action.title, self._means(action)) for letter, action in self._actions.items()]
            heading = next(iter(self._actions.values())).group
        else:
            rows = [(letter, name, _titles(name)) for letter, name in group_letters().items()]
            heading = "Actions"
        listed.styles.max_height = max(_LEAST_ROWS, self.size.height - _AROUND)
        listed.set_options(Option(_row(*row, width)) for row in rows)
        listed.highlighted = 0
        self.query_one("#group", Static).update(words(heading))
        self.query_one("#foot", Static).update(words(_ACTIONS_FOOT if self._actions else _GROUPS_FOOT))

    def _means(self, action: Action) -> str:
        return f"{label_of(action.id, self._overrides)}  {action.help}"


def leader_key(overrides: Mapping[str, str]) -> str:
    """Return the key that opens this, as Textual names it."""
    return keys_of(named(LEADER), overrides).split(",")[0].strip()


def _titles(group: str) -> str:
    return ", ".join(action.title for action in action_letters(group).values())


def _row(letter: str, title: str, text: str, width: int) -> Content:
    first = fit(title, min(_TITLE, width // 2))
    return Content.assemble(
        (letter, "bold underline"),
        "  ",
        first,
        (fit(text, max(0, width - len(first) - 3)), "$foreground 62%"),
    )
