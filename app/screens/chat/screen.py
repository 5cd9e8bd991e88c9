"""The chat screen: tabs, transcript, live panel, composer and status line, and every action."""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.timer import Timer
from textual.widgets import TextArea

from app.chat.conversation import Conversation, Role
from app.chat.draft import Draft
from app.chat.events import AnswerFinished, Notice, PathChanged, SessionEvent, TextReturned, TextStreamed
from app.chat.session import ChatSession
from app.screens.chat.answer_actions import AnswerActions
from app.screens.chat.beat import LiveChrome
from app.screens.chat.bindings import bindings
from app.screens.chat.deck import TranscriptDeck
from app.screens.chat.kept_chats import KeptChats
from app.screens.chat.welcome import welcome_text
from app.screens.context import AppContext
from app.settings import actions
from app.widgets.composer import Composer
from app.widgets.live_panel import LivePanel
from app.widgets.notice_bar import NoticeBar
from app.widgets.sparkline import SpeedHistory
from app.widgets.status_line import StatusLine
from app.widgets.tab_bar import TabBar

if TYPE_CHECKING:
    from app.transcript.view import Transcript

_DRAFT_SECONDS = 0.8


class ChatScreen(LiveChrome, AnswerActions, KeptChats):
    """Owns the tabs. Sessions report here; nobody else touches the widgets."""

    BINDINGS: ClassVar = [*bindings()]
    AUTO_FOCUS = "Composer"

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self._draft_timer: Timer | None = None

    def compose(self) -> ComposeResult:
        """Lay the screen out."""
        settings = self.context.settings
        yield TabBar(id="tabs")
        with Horizontal(id="body"):
            yield TranscriptDeck(id="deck")
            yield LivePanel(id="panel")
        yield NoticeBar(id="notices")
        yield Composer(enter_sends=settings.general.enter_sends, id="composer")
        yield StatusLine(actions.hints(settings.keys), id="status")

    def on_mount(self) -> None:
        """Open the tabs of the last time, or one empty chat."""
        self.start_beat()
        conversations, active = self.context.restored()
        for conversation in conversations:
            self._add(conversation)
        if not self.sessions:
            self._add(self.context.new_conversation())
        self._active = min(active, len(self.sessions) - 1)
        self._apply_panel()
        self.call_later(self._show_active)

    def start_models(self) -> None:
        """Open every tab's model; called once the first frame is on the screen."""
        for session in [self.active, *self.sessions]:
            if session.model is None and not session.models.loading:
                session.open_model(self.context.model_path(session.conversation))

    def _add(self, conversation: Conversation, at: int | None = None) -> ChatSession:
        """Put a chat at the end, or at a place."""
        session = ChatSession(conversation, self.context.services, self._on_session)
        self.sessions.insert(len(self.sessions) if at is None else at, session)
        self._speeds[conversation.id] = SpeedHistory()
        return session

    async def _show_active(self) -> None:
        session = self.active
        session.unread = False
        context, settings = self.context, self.context.settings
        model = context.model_path(session.conversation)
        sends = settings.general.enter_sends
        welcome = welcome_text(context.locations.models, model, settings.keys, enter_sends=sends)
        await self.deck.show(session, welcome)
        self.composer.chat, self.composer.draft = session.conversation.id, session.draft
        self.composer.set_class(session.editing is not None, "-editing")
        self._refresh_past()
        self.code_block = 0
        self.refocus()
        self.refresh_chrome()

    async def activate(self, index: int) -> None:
        """Bring a tab to the front; nothing happens when it is there or gone."""
        await self.composer.settle()
        if index == self._active or not 0 <= index < len(self.sessions):
            return
        self.keep_draft()
        self._active = index
        self._save_tabs()
        await self._show_active()

    def _save_tabs(self) -> None:
        ids = [session.conversation.id for session in self.sessions]
        self.context.history.save_tabs(ids, self.active.conversation.id)

    def _on_session(self, session: ChatSession, event: SessionEvent) -> None:
        visible = session is self.active
        self.deck.apply(session, event)
        if isinstance(event, TextReturned):
            self._take_back(session, event)
        elif isinstance(event, Notice):
            title = "" if visible else session.conversation.title
            self.say(event.text, event.severity, title)
        elif isinstance(event, PathChanged) and visible:
            self._refresh_past()
            if self.deck.transcript is None:
                self.call_later(self._show_transcript)
        elif isinstance(event, TextStreamed | AnswerFinished) and not visible:
            session.unread = True
        if not isinstance(event, TextStreamed):
            self.refocus()
            self.refresh_chrome()

    async def _show_transcript(self) -> None:
        await self.deck.show(self.active)

    def _take_back(self, session: ChatSession, event: TextReturned) -> None:
        """Give text back to its writer; another wording stays one of its message."""
        session.editing = event.editing or session.editing
        if session is self.active:
            self.composer.set_class(session.editing is not None, "-editing")
            self.composer.give_back(event.text)
            return
        kept = session.draft.expanded
        session.draft = Draft.folded(f"{event.text}\n\n{kept}" if kept.strip() else event.text)
        if session.editing is None:
            session.conversation.draft = session.draft.expanded
            self.context.history.save(session.conversation)

    def _refresh_past(self) -> None:
        path = self.active.conversation.path()
        self.composer.set_past([node.text for node in path if node.role is Role.USER])

    @on(TextArea.Changed, "#composer")
    def _on_typed(self) -> None:
        if self._draft_timer is None:
            self._draft_timer = self.set_timer(_DRAFT_SECONDS, self._on_draft_due)

    def _on_draft_due(self) -> None:
        self._draft_timer = None
        self.keep_draft()

    @on(Composer.Submitted)
    def _on_submitted(self, event: Composer.Submitted) -> None:
        index = self.index_of(event.chat)
        if index < 0:
            return
        session = self.sessions[index]
        if session.editing is not None:
            node_id, session.editing = session.editing, None
            self.composer.set_class(self.active.editing is not None, "-editing")
            session.edit(node_id, event.text)
        else:
            session.send(event.text)
        self.keep_draft()

    @on(TabBar.Chosen)
    async def _on_tab_chosen(self, event: TabBar.Chosen) -> None:
        if not isinstance(event, TabBar.CloseClicked):
            await self.activate(self.index_of(event.tab_id))

    @on(TabBar.CloseClicked)
    async def _on_tab_close(self, event: TabBar.CloseClicked) -> None:
        await self._ask_close(self.index_of(event.tab_id))

    @on(TabBar.NewClicked)
    async def _on_tab_new(self) -> None:
        await self.action_new_tab()

    @on(TabBar.Stepped)
    async def _on_tab_step(self, event: TabBar.Stepped) -> None:
        await self.activate(self._active + event.step)

    def on_transcript_copy_requested(self, event: "Transcript.CopyRequested") -> None:
        """Copy what the transcript gives."""
        self.copy(event.text)

    async def action_new_tab(self) -> None:
        """Open an empty chat with the active tab's model."""
        conversation = self.context.new_conversation()
        if self.active.model is not None:
            conversation.model_path = str(self.active.model.path)
        session = self._add(conversation)
        self.context.history.save(conversation)
        session.open_model(self.context.model_path(conversation))
        await self.activate(len(self.sessions) - 1)

    async def action_close_tab(self) -> None:
        """Close the active tab."""
        await self._ask_close(self._active)

    async def _ask_close(self, index: int) -> None:
        if not 0 <= index < len(self.sessions):
            return
        session = self.sessions[index]
        if not session.busy or not self.context.settings.general.confirm_close:
            await self._close(session)
            return
        from app.screens.dialogs.confirm import ConfirmScreen

        question = f"“{session.conversation.title}” is still answering. Stop it and close the tab?"
        screen = ConfirmScreen(question, "Stop and close", "Keep it open")
        self.ask(screen, lambda yes: self.call_later(self._close, session) if yes else None)

    async def _close(self, session: ChatSession) -> None:
        """Close a tab and say where its chat is."""
        await self.close(session)
        if session.conversation.nodes or session.conversation.draft:
            self.say(f"“{session.conversation.title}” is kept; {session.key('chats')} lists all chats.")

    async def close(self, session: ChatSession) -> None:
        """Close a tab; an empty chat is not kept, and after the last tab an empty one opens."""
        await self.composer.settle()
        if session not in self.sessions:
            return
        self.keep_draft()
        index = self.sessions.index(session)
        session.close()
        if len(self.sessions) == 1:
            fresh = self._add(self.context.new_conversation())
            fresh.open_model(self.context.model_path(fresh.conversation))
        self.sessions.remove(session)
        del self._speeds[session.conversation.id]
        if self._active > index or self._active >= len(self.sessions):
            self._active -= 1
        if not session.conversation.nodes and not session.conversation.draft:
            self.context.history.delete(session.conversation.id)
        self._save_tabs()
        self.deck.forget(session)
        await self._show_active()

    def action_fork(self) -> None:
        """Ask for a message and go on from it in a new tab."""
        from app.screens.dialogs.fork import ForkScreen

        session = self.active
        path = session.conversation.path()
        if not path:
            self.say("There is no message to fork from yet.")
            return
        self.ask(ForkScreen(path), lambda node_id: self.call_later(self.fork, session, node_id))

    async def fork(self, session: ChatSession, node_id: str) -> None:
        """Copy a chat up to a message into a new tab right after it; the KV is shared by its token ids."""
        if session in self.sessions:
            conversation = session.conversation.fork(node_id)
            await self.open_in_tab(conversation, self.sessions.index(session) + 1)

    async def open_in_tab(self, conversation: Conversation, index: int) -> None:
        """Give a chat a tab at a place, with its model, and go there."""
        session = self._add(conversation, index)
        if self._active >= index:
            self._active += 1
        self.context.history.save(conversation)
        session.open_model(self.context.model_path(conversation))
        await self.activate(index)

    def action_rename_tab(self) -> None:
        """Ask for another title."""
        from app.screens.dialogs.rename import RenameScreen

        session = self.active
        self.ask(RenameScreen(session.conversation.title), session.rename)

    async def action_previous_tab(self) -> None:
        """Go one tab left, round the end."""
        await self.activate((self._active - 1) % len(self.sessions))

    async def action_next_tab(self) -> None:
        """Go one tab right, round the end."""
        await self.activate((self._active + 1) % len(self.sessions))

    async def action_go_to_tab(self, number: int) -> None:
        """Go to the tab with this number, from 1."""
        await self.activate(number - 1)

    def action_choose_model(self) -> None:
        """Show the model picker."""
        from app.screens.dialogs.model_picker import ModelPicker

        session = self.active
        current = Path(session.conversation.model_path) if session.conversation.model_path else None
        picker = ModelPicker(self.context.model_folders(), current, self.context.find_models)
        self.ask(picker, session.open_model)

    def action_tab_settings(self) -> None:
        """Show the chat's system prompt and sampling settings."""
        from app.screens.dialogs.tab_settings import TabSettings

        session = self.active
        self.ask(TabSettings(session.conversation), lambda _: session.settings_changed())

    def action_choose_theme(self) -> None:
        """Search the themes."""
        self.app.search_themes()

    def action_palette(self) -> None:
        """Search every command."""
        self.app.action_command_palette()

    def action_help(self) -> None:
        """Show all keys."""
        from app.screens.dialogs.help import HelpScreen

        settings = self.context.settings
        self.app.push_screen(HelpScreen(settings.keys, enter_sends=settings.general.enter_sends))

    def action_quit_app(self) -> None:
        """Leave; everything is saved on the way out."""
        self.app.exit()

    def shut_down(self) -> None:
        """Save everything: the draft, the tabs and the text of answers that are still being written."""
        if self._beat is not None:
            self._beat.stop()
        self.keep_draft()
        self._save_tabs()
        for session in self.sessions:
            session.shut_down()
