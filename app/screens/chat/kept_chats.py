"""The chat screen's way to the chats that are kept without a tab."""

import asyncio
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.chat.conversation import Conversation
from app.history.statements import ConversationSummary
from app.history.store import UNDO_SECONDS
from app.models.builtin import model_title
from app.screens.chat.two_windows import TwoWindows
from app.settings import actions
from app.settings.words import size_text
from app.terminal.later import later

_UNDO_SHOWN_SECONDS = 10

if TYPE_CHECKING:
    from app.exchange.formats import Format
    from app.screens.dialogs.chats import Found
    from engine import SavedKV


@dataclass(frozen=True, slots=True)
class _Deleted:
    """A chat that can be brought back, and which tab it had."""

    chat: ConversationSummary
    index: int


class KeptChats(TwoWindows):
    """List, open, export and delete chats of the history; it is read and written off the UI's thread."""

    _deleted: tuple[_Deleted, ...] = ()
    """What can be brought back, the last deleted last."""

    def action_chats(self) -> None:
        """Show all chats."""
        from app.screens.dialogs.chats import ChatsScreen

        opened = {session.conversation.id for session in self.tabs.sessions}
        undo = actions.keys_of(actions.named("undo_delete"), self.context.settings.keys)
        self.ask(ChatsScreen(self.context.history, opened, self, undo), self._open_kept)

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
            await self.open_kept(conversation)

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

    async def delete_chat(self, chat: ConversationSummary) -> bool:
        """Delete a chat and close its tab; for a while it can be brought back."""
        history = self.context.history
        if await asyncio.to_thread(history.is_open_elsewhere, chat.id):
            self.say("This chat is open in another window of tui-chat: close its tab there first.", "warning")
            return False
        index = self.tabs.index_of(chat.id)
        if index >= 0:
            await self.close(self.tabs.sessions[index])
        if not await asyncio.to_thread(history.hide, chat.id):
            self.say("This chat has just been opened in another window of tui-chat.", "warning")
            return False
        deleted = _Deleted(chat, index)
        self._deleted = (*self._deleted, deleted)
        later(self, UNDO_SECONDS, partial(self._delete_for_good, deleted))
        key = self.active.key("undo_delete")
        self.notify(f"“{chat.title}” is deleted; {key} brings it back.", timeout=_UNDO_SHOWN_SECONDS)
        return True

    def _delete_for_good(self, deleted: _Deleted) -> None:
        self._deleted = tuple(other for other in self._deleted if other is not deleted)
        self.run_worker(asyncio.to_thread(self._forget, deleted.chat.id), group="delete for good")

    def _forget(self, chat_id: str) -> None:
        """Delete a chat and what files hold of its context, unless it was brought back."""
        history = self.context.history
        history.delete_hidden(chat_id)
        if history.summary(chat_id) is None:
            self._saved_kv.forget([chat_id])

    @property
    def _saved_kv(self) -> "SavedKV":
        from engine import SavedKV

        return SavedKV(self.context.locations.kv_folder)

    def forget_deleted(self) -> None:
        """Delete what files hold of the contexts of chats that are gone. Reads files: off the UI."""
        kept = self.context.history.ids()
        if kept is not None:
            self._saved_kv.keep_only(kept)

    async def delete_contexts(self) -> None:
        """Delete all contexts in files, and say how much that was."""
        saved = self._saved_kv
        freed = await asyncio.to_thread(lambda: saved.nbytes)
        try:
            await asyncio.to_thread(saved.clear)
        except OSError as error:
            self.say(f"The contexts could not be deleted ({error}).", "error")
        else:
            self.say(f"{size_text(freed)} of contexts are deleted; chats are read again when they go on.")

    async def action_undo_delete(self) -> None:
        """Bring back the chat that was deleted last."""
        if not await self.undo_delete():
            self.say("There is no deleted chat to bring back.")

    async def undo_delete(self) -> bool:
        """Bring back the chat that was deleted last, in its tab if it had one; tell whether there was one."""
        if not self._deleted:
            return False
        *rest, last = self._deleted
        self._deleted = tuple(rest)
        history = self.context.history
        if not await asyncio.to_thread(history.bring_back, last.chat.id):
            self.say(f"“{last.chat.title}” is gone for good.", "warning")
            return False
        self.say(f"“{last.chat.title}” is back.")
        conversation = await asyncio.to_thread(history.load, last.chat.id) if last.index >= 0 else None
        if conversation is not None:
            await self.open_in_tab(conversation, min(last.index, len(self.tabs.sessions)))
        return True

    def action_export_chat(self) -> None:
        """Write the chat in front into a file."""
        self.run_worker(self._export_active(), group="export")

    async def _export_active(self) -> None:
        chat_id = self.active.conversation.id
        chat = await asyncio.to_thread(self.context.history.summary, chat_id)
        if chat is None or not self.active.conversation.nodes:
            self.say("There is nothing to export in this chat yet.")
        else:
            self.export_chat(chat)

    def export_chat(self, chat: ConversationSummary) -> None:
        """Ask what to write a chat as, and write it."""
        from app.screens.dialogs.export import ExportScreen

        self.ask(
            ExportScreen(chat.title),
            lambda form: self.run_worker(self._export(chat, form), group="export", exit_on_error=False),
        )

    async def _export(self, chat: ConversationSummary, form: "Format") -> None:
        index = self.tabs.index_of(chat.id)
        opened = copy(self.tabs.sessions[index].conversation) if index >= 0 else None
        if opened is not None:
            # An answer may go on while the file is written.
            opened.nodes = dict(opened.nodes)
        try:
            path = await asyncio.to_thread(self._write_export, chat, opened, form)
        except OSError as error:
            self.say(f"The chat could not be written ({error}).", "error")
            return
        if path is None:
            self.say("This chat is not there any more.", "warning")
        else:
            self.notify(f"Written to {path}", timeout=_UNDO_SHOWN_SECONDS)

    def _write_export(
        self, chat: ConversationSummary, opened: Conversation | None, form: "Format"
    ) -> Path | None:
        from app.exchange.formats import write_export
        from app.exchange.kept import KeptChat

        conversation = opened or self.context.history.load(chat.id)
        if conversation is None:
            return None
        return write_export(self.context.locations.exports, KeptChat(conversation, chat.marks), form)
