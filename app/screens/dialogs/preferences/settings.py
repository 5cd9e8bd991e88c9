"""All settings in one list: found by a few letters, explained, checked as they are typed."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from app.screens.dialogs.list_keys import move_in
from app.settings.file import Settings
from app.settings.fuzzy import fit_score
from app.settings.table import Setting, all_settings
from app.terminal.controls import clean
from app.widgets.lines import fit
from app.widgets.pick_list import PickList
from app.widgets.words import words

Change = Callable[[str, str, Any], Settings]
"""Takes section, name and value, None for the default; gives the settings as they are then."""

_NAME = 22
_FEW, _PADDING = 8, 2
"""Choices that are listed; of more the help says what matters."""
_CHOOSE = "Enter changes · Ctrl+D default · type to find · Esc closes"
_WRITE = "Enter keeps it · Esc leaves it as it was"


class SettingsScreen(ModalScreen[None]):
    """Changes one setting at a time; every change is kept and saved at once."""

    CSS_PATH: ClassVar = ["../dialog.tcss", "preferences.tcss"]
    BINDINGS: ClassVar = [
        ("escape", "leave", "Close"),
        Binding("ctrl+d", "restore", "Default", priority=True),
        ("enter", "change", "Change"),
    ]

    def __init__(self, settings: Settings, change: Change, themes: Sequence[str]) -> None:
        """change: what takes a new value; themes: the names of those that are there."""
        super().__init__()
        self.VERTICAL_BREAKPOINTS = [(0, "-short"), (32, "-tall")]
        self._settings = settings
        self._change = change
        self._all = all_settings(themes)
        self._found: list[Setting] = []
        self._editing = False

    def compose(self) -> ComposeResult:
        """What is looked for, the list, the help of one setting, its value."""
        with Vertical(classes="dialog preferences"):
            yield Static("Settings", classes="heading")
            yield Input(placeholder="Find a setting", id="find", compact=True)
            yield PickList(id="list")
            yield Static(id="about")
            yield Input(id="value", compact=True)
            yield Static(id="problem", classes="problem")
            yield Static(words(_CHOOSE), id="foot", classes="foot", markup=False)

    def on_mount(self) -> None:
        """List all."""
        self.query_one("#list").can_focus = False
        self._leave_value()

    def on_resize(self) -> None:
        """Lay the rows out for the new width."""
        self.call_after_refresh(self._list)

    @on(Input.Changed, "#find")
    def _list(self) -> None:
        """List what fits the letters; the highlighted setting stays so."""
        listed = self.query_one("#list", PickList)
        before = self._setting
        letters = self.query_one("#find", Input).value
        scored = [
            (fit_score(letters, _text(setting)) if letters.strip() else 1.0, setting) for setting in self._all
        ]
        self._found = [setting for score, setting in sorted(scored, key=lambda pair: -pair[0]) if score > 0]
        width = listed.scrollable_content_region.width - _PADDING
        listed.set_options(Option(self._row(setting, width)) for setting in self._found)
        if self._found:
            listed.highlighted = self._found.index(before) if before in self._found and not letters else 0
        self._explain()

    def _row(self, setting: Setting, width: int) -> Content:
        value = setting.value(self._settings)
        changed = value != setting.default
        name = fit(f"{setting.section}.{setting.name}", min(2 * _NAME, max(_NAME, width // 2)))
        shown = fit(clean(setting.written(value)) or "—", max(1, width - len(name) - 4))
        style = "bold $accent" if changed else "$foreground 62%"
        return Content.assemble("* " if changed else "  ", name, "  ", (shown, style))

    @property
    def _setting(self) -> Setting | None:
        at = self.query_one("#list", PickList).highlighted
        return self._found[at] if at is not None and at < len(self._found) else None

    @on(OptionList.OptionHighlighted)
    def _explain(self) -> None:
        setting = self._setting
        about = self.query_one("#about", Static)
        if setting is None:
            about.update("No setting has these letters.")
            return
        few = 0 < len(setting.choices) <= _FEW
        limits = f" ({', '.join(setting.choices)})" if few else ""
        default = clean(setting.written(setting.default)) or "nothing"
        card = Content.assemble(
            clean(setting.help + limits),
            (f"\nDefault: {default} · takes effect {setting.when}", "$foreground 55%"),
        )
        about.update(card)

    def on_key(self, event: events.Key) -> None:
        """Move in the list while letters are written."""
        if not self._editing:
            move_in(self.query_one("#list", PickList), event)

    @on(OptionList.OptionSelected)
    @on(Input.Submitted, "#find")
    def _on_chosen(self) -> None:
        self.action_change()

    def action_change(self) -> None:
        """Take the next choice, or let the value be written."""
        setting = self._setting
        if setting is None or self._editing:
            return
        value = setting.value(self._settings)
        following = setting.next_choice(value)
        if following is not None:
            self._take(setting, following)
            return
        field = self.query_one("#value", Input)
        field.value = setting.written(value)
        field.display = self._editing = True
        self.query_one("#find", Input).disabled = True
        self.query_one("#foot", Static).update(words(_WRITE))
        field.focus()

    @on(Input.Changed, "#value")
    def _check(self) -> None:
        """Say what is wrong with what is written."""
        if self._editing:
            self._parsed()

    @on(Input.Submitted, "#value")
    def _keep(self) -> None:
        setting = self._setting
        if setting is None or (parsed := self._parsed()) is None:
            return
        self._leave_value()
        self._take(setting, parsed[0])

    def _parsed(self) -> tuple[Any] | None:
        setting, problem = self._setting, ""
        assert setting is not None
        value: tuple[Any] | None = None
        try:
            value = (setting.parsed(self.query_one("#value", Input).value),)
        except ValueError as error:
            problem = f"{setting.name} must be {error}"
        self.query_one("#problem", Static).update(words(problem))
        return value

    def _take(self, setting: Setting, value: Any) -> None:
        """Keep a value; the default itself needs no place in the file."""
        self._settings = self._change(
            setting.section, setting.name, None if value == setting.default else value
        )
        self._list()

    def check_action(self, action: str, *_: object) -> bool | None:
        """While a value is written its keys are the field's."""
        return action != "restore" or not self._editing

    def action_restore(self) -> None:
        """Let the default hold again."""
        if (setting := self._setting) is not None:
            self._take(setting, setting.default)

    def action_leave(self) -> None:
        """Leave the value that is written as it was, or close."""
        if self._editing:
            self._leave_value()
        else:
            self.dismiss(None)

    def _leave_value(self) -> None:
        self._editing = False
        self.query_one("#value", Input).display = False
        self.query_one("#problem", Static).update("")
        self.query_one("#foot", Static).update(words(_CHOOSE))
        find = self.query_one("#find", Input)
        find.disabled = False
        find.focus()


def _text(setting: Setting) -> str:
    return f"{setting.section}.{setting.name} {setting.name.replace('_', ' ')} {setting.help}"
