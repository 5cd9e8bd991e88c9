"""Themes in a list, each shown on the whole app as soon as it is highlighted."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from app.screens.dialogs.list_keys import move_in
from app.screens.preferences import ThemeChoice
from app.settings.fuzzy import fit_score
from app.terminal.controls import clean
from app.widgets.lines import fit
from app.widgets.pick_list import PickList

_NAME, _PADDING = 18, 2


class ThemesScreen(ModalScreen[str | None]):
    """Returns the name of the theme that was chosen; leaving it brings back the one that was there."""

    CSS_PATH: ClassVar = ["../dialog.tcss", "preferences.tcss"]
    BINDINGS: ClassVar = [("escape", "leave", "Leave")]

    def __init__(self, themes: Sequence[ThemeChoice], now: str, show: Callable[[str], None]) -> None:
        """show: draws the app in a theme, without keeping it."""
        super().__init__()
        self._themes, self._now, self._show = themes, now, show
        self._found: list[ThemeChoice] = []

    def compose(self) -> ComposeResult:
        """What is looked for, and the list."""
        with Vertical(classes="dialog themes"):
            yield Static("Theme", classes="heading")
            yield Input(placeholder="Find a theme", compact=True)
            yield PickList()
            yield Static("Enter keeps it · Esc leaves it as it was", classes="foot", markup=False)

    def on_mount(self) -> None:
        """List all, at the present one."""
        self.query_one(PickList).can_focus = False
        self.query_one(Input).focus()

    def on_resize(self) -> None:
        """Lay the rows out for the new width."""
        self.call_after_refresh(self._fill)

    @on(Input.Changed)
    def _fill(self) -> None:
        listed, letters = self.query_one(PickList), self.query_one(Input).value
        scored = [(_fits(letters, theme), theme) for theme in self._themes]
        self._found = [theme for score, theme in sorted(scored, key=lambda pair: -pair[0]) if score > 0]
        width = max(_NAME, listed.scrollable_content_region.width - _PADDING)
        listed.set_options(Option(_row(theme, width)) for theme in self._found)
        names = [theme.name for theme in self._found]
        if names:
            listed.highlighted = names.index(self._now) if self._now in names and not letters else 0

    @on(OptionList.OptionHighlighted)
    def _preview(self, event: OptionList.OptionHighlighted) -> None:
        # What was highlighted in a list that has been filled anew is of no interest.
        if event.option_index < len(self._found):
            self._show(self._found[event.option_index].name)

    def on_key(self, event: events.Key) -> None:
        """Move in the list while letters are written."""
        move_in(self.query_one(PickList), event)

    @on(OptionList.OptionSelected)
    @on(Input.Submitted)
    def _keep(self) -> None:
        at = self.query_one(PickList).highlighted
        if at is not None:
            self.dismiss(self._found[at].name)

    def action_leave(self) -> None:
        """Bring back the theme that was there."""
        self._show(self._now)
        self.dismiss(None)


def _fits(letters: str, theme: ThemeChoice) -> float:
    return fit_score(letters, f"{theme.name} {theme.description}") if letters.strip() else 1.0


def _row(theme: ThemeChoice, width: int) -> Content:
    text = fit(clean(theme.description), max(0, width - _NAME - 1))
    return Content.assemble(f"{fit(theme.name, _NAME)} ", (text, "$foreground 62%"))
