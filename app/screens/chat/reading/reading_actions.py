"""The chat screen's actions for reading a chat: find, go by turns, unfold, select, and open links."""

import asyncio
import os
from typing import TYPE_CHECKING

from textual import on

from app.screens.chat.reading.bars import FindBar, HintLine
from app.screens.chat.reading.code_actions import CodeActions
from app.screens.chat.tab_actions import TabActions
from app.terminal.opening import open_address

if TYPE_CHECKING:
    from app.transcript.view import Transcript

_NOTHING = "There is nothing to read in this chat yet."


class ReadingActions(CodeActions, TabActions):
    """Everything that moves over the transcript in front; nothing of it changes a chat."""

    @property
    def find_bar(self) -> FindBar:
        """The line that a word is looked for with."""
        return self.query_one(FindBar)

    async def show_active(self) -> None:
        """Bring the active chat to the front, in which nothing is looked for yet."""
        self.end_find()
        await super().show_active()

    # finding

    async def action_find(self, rest: str = "") -> bool:
        """Look for a word in the chat; a word that stands behind the command is looked for at once."""
        if self.deck.transcript is None:
            self.say(_NOTHING)
            return False
        self.find_bar.open(rest or None)
        return True

    def end_find(self) -> None:
        """Mark nothing any more."""
        if self.find_bar.shown:
            if self.find_bar.has_focus_within:
                self.composer.focus()
            self.find_bar.close()
            for transcript in self.deck.transcripts:
                transcript.find("")

    @on(FindBar.Changed)
    def _on_word(self, event: FindBar.Changed) -> None:
        if self.deck.transcript is not None and self.find_bar.shown:
            self.deck.transcript.find(event.word)

    @on(FindBar.Stepped)
    def _on_find_step(self, event: FindBar.Stepped) -> None:
        if self.deck.transcript is not None:
            self.deck.transcript.find_next(event.step)

    @on(FindBar.Closed)
    def _on_find_closed(self) -> None:
        self.end_find()

    def on_transcript_counted(self, event: "Transcript.Counted") -> None:
        """Say how many hits there are."""
        self.find_bar.show_count(event.number, event.count, whole=event.whole)

    # turns and thoughts

    def action_previous_turn(self) -> None:
        """Go to the question before."""
        self._go_to_turn(-1, "There is no question before this one.")

    def action_next_turn(self) -> None:
        """Go to the next question; behind the last one is the end."""
        self._go_to_turn(1, _NOTHING)

    def _go_to_turn(self, step: int, otherwise: str) -> None:
        transcript = self.deck.transcript
        if transcript is None or not transcript.go_to_turn(step):
            self.say(otherwise if transcript is not None else _NOTHING)

    def action_thoughts(self) -> None:
        """Unfold what was thought for the answer in view, or fold it."""
        transcript = self.deck.transcript
        if transcript is None or not transcript.toggle_nearest_reasoning():
            self.say("No answer in view has thoughts.")

    # selecting

    def action_select(self) -> None:
        """Select by keys."""
        from app.transcript.caret import HINT

        transcript = self.deck.transcript
        if transcript is None or not transcript.select_by_keys():
            self.say(_NOTHING)
        else:
            self.query_one(HintLine).tell(HINT)

    def on_transcript_caret_ended(self) -> None:
        """Go on writing."""
        self.query_one(HintLine).tell("")
        if self.focused is self.deck.transcript:
            self.composer.focus()

    def action_copy_chat(self) -> None:
        """Copy all messages that are shown."""
        text = self.deck.transcript.all_text if self.deck.transcript is not None else ""
        self.copy(text, "Chat. ") if text else self.say(_NOTHING)

    # links

    async def action_links(self, rest: str = "") -> bool:
        """List the links of the answer in view, or open the one of a number; tell whether there are any."""
        transcript = self.deck.transcript
        answers = transcript.answers_in_view() if transcript is not None else []
        links = next((found for item in answers if (found := item.links())), [])
        if not links:
            self.say("No answer in view has a link.")
            return False
        if not rest:
            from app.screens.chat.reading.links import LinksScreen

            self.ask(LinksScreen(links), self.open_link)
            return True
        if not rest.isdecimal() or not 1 <= int(rest) <= len(links):
            self.say(f"/links {rest}: write a number from 1 to {len(links)}.", "warning")
            return False
        self.open_link(links[int(rest) - 1][1])
        return True

    def on_transcript_link_asked(self, event: "Transcript.LinkAsked") -> None:
        """Open a link that was clicked."""
        self.open_link(event.address)

    def open_link(self, address: str) -> None:
        """Open an address on the desktop, or copy it where none is near."""
        self.run_worker(self._open(address), group="link", exit_on_error=False)

    async def _open(self, address: str) -> None:
        if await asyncio.to_thread(open_address, address, os.environ):
            self.say(f"Opened {address}")
        else:
            self.copy(address, "No desktop is near to open the link. ")
