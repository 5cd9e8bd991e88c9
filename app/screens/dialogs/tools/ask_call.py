"""Whether a tool that a model has called may run."""

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.chat.tool_use.use import AskedCall, Choice
from app.widgets.pick_list import PickList
from app.widgets.words import words

_DESCRIPTION, _ARGUMENTS = 300, 20_000
"""Most characters of what a tool says of itself, and of arguments."""
_NAME = 10


class AskCallScreen(ModalScreen[Choice | None]):
    """Returns the reader's word; None stops the answer.

    Nothing has the focus at first: who is just writing a message allows nothing with Enter.
    """

    CSS_PATH: ClassVar = ["../dialog.tcss", "tools.tcss"]
    BINDINGS: ClassVar = [
        ("escape", "dismiss(None)", "Stop"),
        ("down,up", "choose", "Choose"),
        ("pagedown", "turn(1)", "Arguments"),
        ("pageup", "turn(-1)", "Arguments"),
    ]
    AUTO_FOCUS = ""

    def __init__(self, asked: AskedCall) -> None:
        super().__init__()
        self._asked = asked

    def compose(self) -> ComposeResult:
        """Which tool of which server, what it says of itself, the arguments, and what can be said."""
        tool, text = self._asked.tool, self._asked.call.text
        rows = {
            Choice.ONCE: ("Once", "run it now"),
            Choice.ALWAYS: ("Always", "run this tool in this chat unasked"),
            Choice.NO: ("No", "the model hears that you refused"),
        }
        more = f"\n… {len(text) - _ARGUMENTS:,} characters more" if len(text) > _ARGUMENTS else ""
        with Vertical(classes="dialog"):
            yield Static(words(f"{self._asked.who} asks for {tool.name} of {tool.server}"), classes="heading")
            with VerticalScroll(id="arguments", can_focus=False):
                yield Static(words(text[:_ARGUMENTS] + more))
                if description := " ".join(tool.description.split()):
                    yield Static(words(description[:_DESCRIPTION]), classes="foot")
            yield PickList(
                *(
                    Option(words(f"{name:<{_NAME}}{what}"), id=choice)
                    for choice, (name, what) in rows.items()
                ),
                id="choices",
            )
            yield Static(words("↑ ↓ choose, Enter decides · Esc stops the answer"), classes="foot")

    def on_mount(self) -> None:
        """Highlight nothing: Enter decides nothing yet."""
        self.query_one("#choices", PickList).highlighted = None

    def action_choose(self) -> None:
        """Begin to choose, at the first."""
        choices = self.query_one("#choices", PickList)
        choices.focus()
        choices.highlighted = 0

    def action_turn(self, way: int) -> None:
        """Show the next page of the arguments, or the one before."""
        arguments = self.query_one("#arguments", VerticalScroll)
        arguments.scroll_page_down(animate=False) if way > 0 else arguments.scroll_page_up(animate=False)

    @on(OptionList.OptionSelected)
    def _on_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(Choice(str(event.option_id)))
