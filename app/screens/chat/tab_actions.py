"""The chat screen's actions on tabs: open, close, fork, rename, and go from one to another."""

from collections.abc import Callable
from typing import TypeVar

from textual.screen import Screen

from app.chat.conversation import Conversation, Role
from app.chat.session import ChatSession
from app.screens.chat.base import ChatBase
from app.screens.chat.empty.welcome import PROMPTS, welcome_text
from app.settings import actions

_Answer = TypeVar("_Answer")


class TabActions(ChatBase):
    """Opens and closes tabs and shows the one in front."""

    async def show_active(self) -> None:
        """Bring the screen up to the tab in front."""
        session = self.active
        # First: what is typed while the transcript is being made is meant for this chat already.
        self.show_draft()
        self.refresh_past()
        session.unread = False
        self.show_welcome()
        await self.deck.show(session)
        self.tabs.refocus()
        self.beat.draw()

    def show_welcome(self) -> None:
        """Have the empty chat say what fits the tab in front."""
        context, settings = self.context, self.context.settings
        model = context.model_path(self.active.conversation)
        folder, writing = context.locations.models, settings.general.writing_keys
        self.deck.greet(welcome_text(folder, model, settings.keys, self.offered, writing=writing))

    def refresh_past(self) -> None:
        """Let the composer recall what this chat has asked, or in an empty one what could be asked."""
        path = self.active.conversation.path()
        asked = [node.text for node in path if node.role is Role.USER]
        self.composer.set_past(asked if path else PROMPTS[::-1])

    def action_begin_with(self, number: int) -> None:
        """Write one of the empty chat's prompts, where nothing is written yet."""
        if not self.composer.text:
            self.composer.insert(PROMPTS[number])
        self.composer.focus()

    async def activate(self, index: int) -> None:
        """Bring a tab to the front; nothing happens when it is there or gone."""
        await self.composer.settle()
        if index == self.tabs.position or not 0 <= index < len(self.tabs.sessions):
            return
        self.keep_draft()
        self.tabs.position = index
        self.tabs.save()
        await self.show_active()

    def cover(
        self, view: Screen[_Answer], closed: Callable[[_Answer | None], int], *, shown: bool = False
    ) -> None:
        """Show a screen that hides all of this one; `closed` takes its answer and returns the next tab.

        shown: whether the chat in front is seen on it.
        """
        self.deck.covered = self.beat.covered = True
        self.tabs.cover(not shown)

        def end(answer: _Answer | None) -> None:
            self.over, self.deck.covered, self.beat.covered = None, False, False
            self.call_later(self._come_back, closed(answer))

        self.app.push_screen(view, end)

    async def _come_back(self, index: int) -> None:
        """Show what has come meanwhile."""
        await self.activate(index)
        await self.deck.show(self.active)
        self.beat.fit_panel()
        self.tabs.cover(False)

    async def open_in_tab(self, conversation: Conversation, index: int, *, read_only: bool = False) -> None:
        """Give a chat a tab at a place, with its model, and go there.

        read_only: another window writes it; it needs no model here.
        """
        session = self.tabs.add(conversation, index, read_only=read_only)
        self.context.history.save(conversation)
        if not read_only:
            self.tabs.open_model(session)
        await self.activate(index)

    async def close(self, session: ChatSession) -> None:
        """Close a tab; an empty chat is not kept, and after the last tab an empty one opens."""
        await self.composer.settle()
        if session not in self.tabs.sessions:
            return
        self.keep_draft()
        session.close()
        if len(self.tabs.sessions) == 1:
            self.tabs.open_model(self.tabs.add(self.context.new_conversation()))
        self.tabs.remove(session)
        self.beat.forget(session)
        if not session.conversation.nodes and not session.conversation.draft:
            self.context.history.discard(session.conversation.id)
        self.tabs.save()
        self.deck.forget(session)
        await self.show_active()

    async def action_new_tab(self) -> None:
        """Open an empty chat with the active tab's model."""
        conversation = self.context.new_conversation()
        if self.active.model is not None:
            conversation.model_path = str(self.active.model.path)
        await self.open_in_tab(conversation, len(self.tabs.sessions))

    async def action_close_tab(self) -> None:
        """Close the active tab."""
        await self.ask_close(self.tabs.position)

    async def ask_close(self, index: int) -> None:
        """Close a tab; one that answers is asked about first, if the settings say so."""
        if not 0 <= index < len(self.tabs.sessions):
            return
        session = self.tabs.sessions[index]
        if not session.busy or not self.context.settings.general.confirm_close:
            await self._close_by_hand(session)
            return
        from app.screens.dialogs.confirm import ConfirmScreen

        question = f"“{session.conversation.title}” is still answering. Stop it and close the tab?"
        screen = ConfirmScreen(question, "Stop and close", "Keep it open")
        self.ask(screen, lambda yes: self.call_later(self._close_by_hand, session) if yes else None)

    async def _close_by_hand(self, session: ChatSession) -> None:
        """Close a tab and say where its chat is."""
        await self.close(session)
        if session.conversation.nodes or session.conversation.draft:
            self.say(f"“{session.conversation.title}” is kept; {session.key('chats')} lists all chats.")

    def action_fork(self) -> None:
        """Ask for a message and go on from it in a new tab."""
        from app.screens.dialogs.pick_message import PickMessage

        session = self.active
        path = session.conversation.path()
        if not path:
            self.say("There is no message to fork from yet.")
            return

        def answered(node_id: str) -> None:
            self.composer.hold()
            self.call_later(self._fork, session, node_id)
            self.call_later(self.composer.let_go)

        keys = actions.keys_of(actions.named("fork"), self.context.settings.keys)
        heading, foot = "Fork: go on from which message?", "Enter opens it in a new tab · Esc leaves"
        self.ask(PickMessage(path, heading, foot, keys), answered)

    async def _fork(self, session: ChatSession, node_id: str) -> None:
        """Copy a chat up to a message into a new tab right after it; the KV is shared by its token ids."""
        if session in self.tabs.sessions:
            conversation = session.conversation.fork(node_id)
            await self.open_in_tab(conversation, self.tabs.sessions.index(session) + 1)

    def action_rename_tab(self) -> None:
        """Ask for another title."""
        from app.screens.dialogs.rename import RenameScreen

        session = self.active
        if self.may_write():
            self.ask(RenameScreen(session.conversation.title), session.rename)

    async def action_previous_tab(self) -> None:
        """Go one tab left, round the end."""
        await self.activate((self.tabs.position - 1) % len(self.tabs.sessions))

    async def action_next_tab(self) -> None:
        """Go one tab right, round the end."""
        await self.activate((self.tabs.position + 1) % len(self.tabs.sessions))

    async def action_go_to_tab(self, number: int) -> None:
        """Go to the tab with this number, from 1."""
        await self.activate(number - 1)
