"""The chat screen's actions on the answer and the transcript of the active chat."""

import asyncio
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from textual.selection import Selection
from textual.widget import Widget

from app.screens.chat.base import ChatBase
from app.terminal.driver import write_terminal
from engine import Priority


class AnswerActions(ChatBase):
    """Stop, pause, rank, ask again, edit, copy and scroll."""

    _copied: Mapping[Widget, Selection] = MappingProxyType({})
    """The selection that was copied last: the button is let go of for other reasons too."""

    def action_stop(self) -> None:
        """Leave editing, stop the answer or the loading, or take warnings away: the first that applies."""
        session = self.active
        if session.writing.editing is not None:
            session.writing.leave_editing()
            self.show_draft()
            self.beat.draw()
        elif not session.stop() and not session.cancel_load():
            self.context.history.dismiss()
            self.beat.end_warnings()
            self.beat.draw()

    def action_pause(self) -> None:
        """Pause the answer or let it go on."""
        if not self.active.pause():
            self.say("There is no answer to pause.")

    def set_priority(self, priority: Priority) -> None:
        """Rank this chat against the others."""
        if not self.may_write():
            return
        self.active.set_priority(priority)
        self.say(f"This chat now has {priority} priority.")

    def action_regenerate(self) -> None:
        """Write the last answer again."""
        if self.may_write():
            self.active.regenerate()

    def action_edit_last(self) -> None:
        """Put the last message into the composer to ask differently."""
        if not self.may_write():
            return
        session = self.active
        node = session.conversation.last_user()
        if node is None or session.busy:
            stop = f"Press {session.key('stop')} to stop the answer first."
            self.say(stop if session.busy else "There is no message to edit yet.")
            return
        self.keep_draft()
        session.writing.edit(node.id, node.text)
        self.show_draft()
        self.composer.focus()
        self.beat.draw()

    def action_previous_answer(self) -> None:
        """Show the alternative before this one."""
        if self.may_write():
            self.active.show_sibling(-1)

    def action_next_answer(self) -> None:
        """Show the alternative after this one."""
        if self.may_write():
            self.active.show_sibling(1)

    def action_copy_answer(self) -> None:
        """Copy the last answer's source text."""
        node = self.active.conversation.last_answer()
        if node is None or not node.text:
            self.say("There is no answer to copy yet.")
        else:
            self.copy(node.text)

    def action_copy_code(self) -> None:
        """Copy the last answer's next code block."""
        found = self.deck.next_code_block()
        if found is None:
            self.say("The last answer has no code block.")
        else:
            text, number, count = found
            self.copy(text, f"Code block {number} of {count}. ")

    def action_copy_selection(self) -> None:
        """Copy what is selected in the chat or in what is written; without that, say what leaves."""
        if text := self.get_selected_text() or self.composer.selected_text:
            self.copy(text)
        else:
            key = self.active.key
            stop = f", {key('stop')} stops the answer" if self.active.busy else ""
            self.say(f"Nothing is selected to copy. {key('quit_app')} leaves{stop}.")

    def on_text_selected(self) -> None:
        """Copy what the mouse has selected, once."""
        selections, self._copied = self._copied, self.selections
        if self.selections != selections and (text := self.get_selected_text()):
            self.copy(text)

    def copy(self, text: str, prefix: str = "") -> None:
        """Copy off the UI's thread and say what came of it."""
        self.run_worker(self._copy(text, prefix), group="copy", exit_on_error=False)

    async def _copy(self, text: str, prefix: str) -> None:
        result = await asyncio.to_thread(self.context.copy, text, partial(write_terminal, self.app))
        self.say(prefix + result.message, "information" if result.ok else "warning")

    def action_scroll_up(self) -> None:
        """Scroll the transcript up a page."""
        if self.deck.transcript is not None:
            self.deck.transcript.scroll_page_up(animate=False)

    def action_scroll_down(self) -> None:
        """Scroll the transcript down a page."""
        if self.deck.transcript is not None:
            self.deck.transcript.scroll_page_down(animate=False)

    def action_scroll_end(self) -> None:
        """Go to the end and follow it."""
        if self.deck.transcript is not None:
            self.deck.transcript.jump_to_end()
