"""The chat screen's way to the chats that are kept without a tab."""

import asyncio
from typing import TYPE_CHECKING

from app.models.builtin import model_title
from app.screens.chat.tab_actions import TabActions

if TYPE_CHECKING:
    from app.screens.dialogs.chats import Found


class KeptChats(TabActions):
    """List, open and delete chats of the history; it is read and written off the UI's thread."""

    def action_chats(self) -> None:
        """Show all chats."""
        from app.screens.dialogs.chats import ChatsScreen

        opened = {session.conversation.id for session in self.tabs.sessions}
        self.ask(ChatsScreen(self.context.history, opened, self._delete_kept), self._open_kept)

    def _open_kept(self, found: "Found") -> None:
        self.composer.hold()
        self.run_worker(self._go_to_kept(found), group="open")

    async def _go_to_kept(self, found: "Found") -> None:
        try:
            await self._load_kept(found.chat.id)
            self.call_later(self._reveal, found)
        finally:
            self.call_later(self.composer.let_go)

    def _reveal(self, found: "Found") -> None:
        """Show the message that a search found, on the branch that it stands on."""
        session, node_id = self.active, found.chat.message_id
        conversation = session.conversation
        if conversation.id != found.chat.id or node_id not in conversation.nodes:
            return
        if node_id not in (node.id for node in conversation.path()):
            if session.busy:
                self.say("The message that was found stands on another branch; stop the answer to see it.")
                return
            session.show_branch(node_id)
        self.deck.reveal(node_id, found.words)

    async def _load_kept(self, conversation_id: str) -> None:
        index = self.tabs.index_of(conversation_id)
        if index >= 0:
            self.call_later(self.activate, index)
            return
        conversation = await asyncio.to_thread(self.context.history.load, conversation_id)
        if conversation is None:
            self.say("This chat is not there any more.", "warning")
        elif self.tabs.index_of(conversation_id) < 0:
            wanted = conversation.model_path
            found = self.context.model_path(conversation)
            if wanted and str(found) != wanted:
                goes_on = f"it goes on with {model_title(found)}"
                self.say(f"{model_title(wanted)} is not there any more; {goes_on}.", "warning")
            self.call_later(self.open_in_tab, conversation, len(self.tabs.sessions))

    def leave(self) -> None:
        """Leave the app once everything is saved; what cannot be is asked about."""
        self.keep_draft()
        self.run_worker(self._leave(), group="leave", exclusive=True)

    async def _leave(self) -> None:
        from app.screens.dialogs.confirm import ConfirmScreen

        history = self.context.history
        if history.unsaved:
            self.say("Trying to save before leaving…")
        if await asyncio.to_thread(history.flush):
            self.app.exit()
        elif not isinstance(self.app.screen, ConfirmScreen):
            why = history.standing[0] if history.standing else "NOT SAVED: the history does not answer."
            question = f"{why} If you leave now, what you wrote since is lost."
            screen = ConfirmScreen(question, "Leave and lose it", "Stay")
            self.ask(screen, lambda yes: self.app.exit() if yes else None)

    async def _delete_kept(self, conversation_id: str) -> bool:
        index = self.tabs.index_of(conversation_id)
        session = self.tabs.sessions[index] if index >= 0 else None
        if not await asyncio.to_thread(self.context.history.hide, conversation_id):
            self.say("This chat is open in another window of tui-chat: close its tab there first.", "warning")
            return False
        if session is not None:
            await self.close(session)
        return True
