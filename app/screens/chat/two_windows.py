"""One chat in two windows: it is written in one of them, and read in the other until that takes it over."""

import asyncio

from app.chat.conversation import Conversation
from app.chat.session import ChatSession
from app.screens.chat.tab_actions import TabActions

_LOOK_SECONDS = 1.0
_MOST_SKIPPED = 30
"""Looks in a row that are left out: where the file's time of writing cannot be trusted it is looked all the
same."""


class TwoWindows(TabActions):
    """Gives chats away that another window takes over, and takes them over."""

    def watch_windows(self) -> None:
        """Look from time to time what other windows want, and what they write in chats that are read here."""
        self._shown_at: dict[str, float] = {}
        self._looking = False
        self._written: object = None
        self._skipped = 0
        self.set_interval(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """Ask the history where something may have come: another window can want nothing without writing."""
        if self._looking or not self.tabs.sessions:
            return
        written = self.context.history.last_written()
        # A window that ends writes nothing.
        reads = any(session.read_only for session in self.tabs.sessions)
        if written == self._written and not reads and self._skipped < _MOST_SKIPPED:
            self._skipped += 1
        else:
            self._looking, self._written, self._skipped = True, written, 0
            self.run_worker(self._look_at_windows(), group="windows", exit_on_error=False)

    async def _look_at_windows(self) -> None:
        try:
            for chat_id in await asyncio.to_thread(self.context.history.takeovers_asked):
                # It may have to wait for an answer's end.
                self._written = None
                await self._give_away(chat_id)
            for session in [session for session in self.tabs.sessions if session.read_only]:
                await self._follow(session)
        finally:
            self._looking = False

    async def _give_away(self, chat_id: str) -> None:
        """Read a chat from now on; an answer ends first, and what it wrote is saved."""
        index = self.tabs.index_of(chat_id)
        session = self.tabs.sessions[index] if index >= 0 else None
        if session is None or session.read_only or session.stop():
            return
        self.keep_draft()
        session.read_only = True
        self.tabs.save()
        await asyncio.to_thread(self.context.history.flush)
        key = session.key("take_over")
        title = session.conversation.title
        self.say(f"“{title}” goes on in another window; {key} takes it back.", "warning")
        self.beat.draw()

    async def _follow(self, session: ChatSession) -> None:
        """Write a chat as soon as no other window does; until then show what comes there."""
        history, chat_id = self.context.history, session.conversation.id
        if await asyncio.to_thread(history.claim_writing, chat_id):
            await self._read_again(session, read_only=False)
            self.say(f"“{session.conversation.title}” is written here now.")
            return
        chat = await asyncio.to_thread(history.summary, chat_id)
        if chat is not None and chat.updated != self._shown_at.get(chat_id, session.conversation.updated):
            await self._read_again(session, read_only=True)
            self._shown_at[chat_id] = chat.updated

    async def _read_again(self, session: ChatSession, *, read_only: bool) -> None:
        """Put what the history holds in place of a tab's chat."""
        self.keep_draft()
        session.close()
        conversation = await asyncio.to_thread(self.context.history.load, session.conversation.id)
        if session not in self.tabs.sessions:
            return
        fresh = self.tabs.replace(session, conversation or session.conversation, read_only=read_only)
        self.deck.forget(session)
        self.tabs.save()
        if not read_only:
            self.tabs.open_model(fresh)
        if fresh is self.active:
            await self.show_active()

    def action_take_over(self) -> None:
        """Write the chat in front here; the window that writes it reads it from then on."""
        session = self.active
        if not session.read_only:
            self.say("This chat is written here already.")
            return
        self.say("Asking the other window to leave this chat to you…")
        self.run_worker(
            asyncio.to_thread(self.context.history.ask_takeover, session.conversation.id), group="take over"
        )

    async def open_kept(self, conversation: Conversation) -> None:
        """Give a chat of the history a tab; one that another window writes is read."""
        chat_id = conversation.id
        read_only = bool(await asyncio.to_thread(self.context.history.written_elsewhere, [chat_id]))
        self.call_later(self.open_in_tab, conversation, len(self.tabs.sessions), read_only=read_only)
