"""The servers of tools that the settings name, and which of them a chat has switched on."""

from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.screens.dialogs.tools.state_words import NONE_NAMED, state_text
from app.terminal.controls import clean
from app.tools.state import ServerState, State
from app.widgets.lines import fit
from app.widgets.pick_list import PickList
from app.widgets.words import words

_NAME, _STATE = 18, 24
"""Cells of a name and of a state: one line also where the terminal has 60 columns."""
_DESCRIPTION = 200


class ToolServersScreen(ModalScreen[None]):
    """Lists servers; Enter switches one on or off in the chat."""

    CSS_PATH: ClassVar = ["../dialog.tcss", "tools.tcss"]
    BINDINGS: ClassVar = [("escape", "dismiss(None)", "Leave")]

    def __init__(
        self,
        states: Callable[[], Sequence[ServerState]],
        chosen: Callable[[], Sequence[str]],
        switch: Callable[[str], Awaitable[None]],
    ) -> None:
        """states, chosen: return how servers are doing and which are switched on; switch: switches one."""
        super().__init__()
        self._states, self._chosen, self._switch = states, chosen, switch
        self._shown: Sequence[ServerState] = ()

    def compose(self) -> ComposeResult:
        """One line a server, and what the one that is highlighted offers."""
        with Vertical(classes="dialog"):
            yield Static(words("Tools in this chat"), classes="heading")
            yield PickList(id="servers")
            with VerticalScroll(id="offered", can_focus=False):
                yield Static(id="tools")
            yield Static(words("Enter switches one on or off · Esc leaves"), classes="foot")

    def on_mount(self) -> None:
        """List them."""
        self._fill(0)

    def _fill(self, highlighted: int) -> None:
        servers, chosen = self.query_one("#servers", PickList), self._chosen()
        self._shown = self._states()
        servers.clear_options()
        for state in self._shown:
            servers.add_option(Option(_row(state, on=state.name in chosen)))
        servers.highlighted = min(highlighted, len(self._shown) - 1) if self._shown else None
        if not self._shown:
            self.query_one("#tools", Static).update(words(NONE_NAMED))

    @on(OptionList.OptionHighlighted)
    def _on_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        self.query_one("#tools", Static).update(words(_offered(self._shown[event.option_index])))

    @on(OptionList.OptionSelected)
    def _on_selected(self, event: OptionList.OptionSelected) -> None:
        self.run_worker(self._turn(event.option_index), exclusive=True, group="switch")

    async def _turn(self, at: int) -> None:
        await self._switch(self._shown[at].name)
        self._fill(at)


def _row(state: ServerState, *, on: bool) -> Content:
    wrong = state.state in (State.FAILED, State.ENDED)
    return Content.assemble(
        ("● " if on else "○ ", "$accent" if on else "$foreground 40%"),
        f"{fit(state.name, _NAME)}",
        ("on   " if on else "off  ", "$foreground" if on else "$foreground 50%"),
        (fit(clean(state_text(state)), _STATE), "$error" if wrong else "$foreground 62%"),
    )


def _offered(state: ServerState) -> str:
    lines = [
        f"{tool.name}  {' '.join(tool.description.split())[:_DESCRIPTION]}".rstrip() for tool in state.tools
    ]
    if state.why:
        lines.append(f"{state.name} {state_text(state)}")
    if state.left_out:
        lines.append(f"Left out, their names or schemas do not fit: {', '.join(state.left_out)}")
    return "\n".join(lines)
