"""Lists to choose from, which a small terminal may leave without room for a row.

Textual's page keys raise `KeyError` then.
"""

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.command import CommandList, CommandPalette
from textual.widgets import OptionList


class PickList(OptionList):
    """A list whose page keys do nothing while it has no room."""

    def action_page_up(self) -> None:
        """Move the highlight up one page."""
        if self.scrollable_content_region:
            super().action_page_up()

    def action_page_down(self) -> None:
        """Move the highlight down one page."""
        if self.scrollable_content_region:
            super().action_page_down()


class Palette(CommandPalette):
    """Textual's command palette with the same care for its list, which it makes itself."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pagedown", "page('page_down')", "Next page", show=False),
        Binding("pageup", "page('page_up')", "Previous page", show=False),
    ]

    async def action_page(self, move: str) -> None:
        """Move in the commands, where any are shown."""
        commands = self.query_one(CommandList)
        if commands.scrollable_content_region:
            await commands.run_action(move)
