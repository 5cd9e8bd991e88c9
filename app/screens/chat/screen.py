"""The chat screen: tabs, transcript, live panel, composer and status line, and every action."""

import asyncio
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import TextArea

from app.chat.events import (
    AnswerFinished,
    CallAsked,
    ContextFilled,
    Notice,
    PathChanged,
    PlanAsked,
    SessionEvent,
    TextReturned,
    TextStreamed,
)
from app.chat.session import ChatSession
from app.screens.chat.answering.context_actions import ContextActions
from app.screens.chat.answering.tool_actions import ToolActions
from app.screens.chat.bindings import bindings
from app.screens.chat.deck import TranscriptDeck
from app.screens.chat.kept_chats import KeptChats
from app.screens.chat.measuring import MeasureActions
from app.screens.chat.reading.bars import FindBar, HintLine
from app.screens.chat.reading.reading_actions import ReadingActions
from app.screens.chat.steer_actions import SteerActions
from app.screens.chat.terminal.app_actions import AppActions
from app.screens.chat.terminal.telling import Telling
from app.screens.chat.writing.cost_hint import CostHint
from app.screens.chat.writing.writing_actions import WritingActions
from app.screens.context import AppContext
from app.settings import actions
from app.terminal.later import later
from app.widgets.live_panel import LivePanel
from app.widgets.notice_bar import NoticeBar
from app.widgets.status_line import StatusLine
from app.widgets.tab_bar import TabBar
from app.widgets.writing.composer import Composer

if TYPE_CHECKING:
    from app.transcript.view import Transcript

_DRAFT_SECONDS = 0.8
_AIRY_FROM = 32
"""Rows of the terminal from which one below the tabs is empty."""


class ChatScreen(
    KeptChats,
    SteerActions,
    ReadingActions,
    WritingActions,
    ContextActions,
    ToolActions,
    MeasureActions,
    AppActions,
):
    """Owns the tabs. Sessions report here; nobody else touches the widgets."""

    BINDINGS: ClassVar = [*bindings()]
    AUTO_FOCUS = "Composer"

    def __init__(self, context: AppContext) -> None:
        super().__init__(context, self._on_session)
        self._telling = Telling(self.app, context, context.tell)
        self._cost = CostHint(self.composer, context, self.tabs)
        self._draft_due = False
        self._sent_early: list[str] = []
        """What was sent before the chats of the last time were there."""

    def compose(self) -> ComposeResult:
        """Lay the screen out."""
        settings = self.context.settings
        yield TabBar(id="tabs")
        with Horizontal(id="body"):
            yield TranscriptDeck(settings.general.text_width, id="deck")
            yield LivePanel(actions.label_of("engine_view", settings.keys), id="panel")
        yield FindBar(id="find")
        yield HintLine(id="hint")
        yield NoticeBar(id="notices")
        yield self.composer
        yield self.composer.completions
        yield StatusLine(actions.hints(settings.keys), id="status")

    def on_mount(self) -> None:
        """Lay the empty screen out; the chats come with `restore`."""
        self.beat.start(self._telling.show)
        self._telling.start(self)
        self.beat.fit_panel()

    async def restore(self) -> None:
        """Open the tabs of the last time, or one empty chat, and their models.

        Called once the first frame is on the screen. What was typed or sent before stands in the chat in
        front, behind its draft.
        """
        conversations, active = await asyncio.to_thread(self.context.restored)
        ids = [conversation.id for conversation in conversations]
        elsewhere = await asyncio.to_thread(self.context.history.written_elsewhere, ids)
        for conversation in conversations or [self.context.new_conversation()]:
            self.tabs.add(conversation, read_only=conversation.id in elsewhere)
        self.tabs.position = min(active, len(self.tabs.sessions) - 1)
        writing, typed = self.active.writing, self.composer.draft
        if typed.text:
            writing.keep(typed.after(writing.draft.expanded))
        for text in self._sent_early:
            self.active.queued.append(text)
        for session in [self.active, *self.tabs.sessions]:
            if not session.models.loading and not session.read_only:
                self.tabs.open_model(session)
        self.tabs.save()
        self.watch_windows()
        await self.show_active()
        self.run_worker(self.make_offer(), group="offer")
        self.run_worker(self.forget_deleted, thread=True, group="forget deleted")
        # What shows a transcript takes a tenth of a second to import: not when the first chat is opened.
        self.run_worker(partial(import_module, "app.transcript.view"), thread=True, group="transcript")

    def check_action(self, action: str, *_: object) -> bool | None:
        """Before the chats are there only what needs none can be done."""
        if action == actions.LEADER and self.composer.has_focus and self.composer.selected_text:
            # The same key cuts what is selected.
            return False
        needs_none = ("quit_app", "help", "toggle_panel", "choose_theme", "palette", "settings", "suspend")
        return bool(self.tabs.sessions) or action in needs_none

    def on_key(self, event: events.Key) -> None:
        """Write what is typed while another widget has the focus: the composer stops its own keys."""
        if event.is_printable and event.character is not None:
            event.stop()
            self.composer.type_in(event.character)

    def on_paste(self, event: events.Paste) -> None:
        """Write what is pasted while another widget has the focus."""
        event.stop()
        self.composer.paste(event.text)

    def on_resize(self) -> None:
        """Show the live panel where there is room for it, and some air below the tabs."""
        self.set_class(self.app.size.height >= _AIRY_FROM, "-airy")
        self.beat.fit_panel()

    def _on_session(self, session: ChatSession, event: SessionEvent) -> None:
        visible = session is self.active
        self.deck.apply(session, event)
        if self.over is not None:
            self.over.take(session, event)
        if isinstance(event, TextReturned):
            self._take_back(session, event)
        elif isinstance(event, Notice):
            title = "" if visible else session.conversation.title
            self.say(event.text, event.severity, title)
        elif isinstance(event, PlanAsked) and visible:
            self.ask_plan()
        elif isinstance(event, CallAsked) and visible:
            self.ask_call()
        elif isinstance(event, ContextFilled) and visible:
            self.action_make_room()
        elif isinstance(event, PathChanged) and visible:
            self.refresh_past()
            if self.deck.transcript is None:
                self.call_later(self._show_transcript)
        elif isinstance(event, TextStreamed | AnswerFinished) and not visible:
            session.unread = True
        if isinstance(event, AnswerFinished | CallAsked):
            self._telling.heard(session, event)
        if not isinstance(event, TextStreamed):
            self.tabs.refocus()
            self.beat.draw()
            if visible:
                self._cost.count_soon()

    async def _show_transcript(self) -> None:
        await self.deck.show(self.active)

    def _take_back(self, session: ChatSession, event: TextReturned) -> None:
        """Give text back to its writer."""
        self.keep_draft()
        session.writing.take_back(event.text, event.editing)
        if session is self.active:
            self.show_draft()

    @on(TextArea.Changed, "#composer")
    def _on_typed(self) -> None:
        self.completer.refresh()
        self._cost.count_soon()
        if not self._draft_due:
            self._draft_due = True
            later(self, _DRAFT_SECONDS, self._on_draft_due)

    def _on_draft_due(self) -> None:
        self._draft_due = False
        self.keep_draft()

    @on(Composer.Submitted)
    def _on_submitted(self, event: Composer.Submitted) -> None:
        if not self.tabs.sessions:
            self._sent_early.append(event.text)
            return
        # Enter may have been pressed before any chat was there, and is heard of only now.
        index = self.tabs.index_of(event.chat) if event.chat else self.tabs.position
        if index < 0:
            return
        session = self.tabs.sessions[index]
        node_id = session.writing.editing
        if session.read_only:
            self.may_write()
            self._take_back(session, TextReturned(event.text))
            return
        if node_id is None:
            session.send(event.text)
        else:
            self._leave_editing(session)
            session.edit(node_id, event.text)
        self.keep_draft()
        self.beat.end_warnings()

    def _leave_editing(self, session: ChatSession) -> None:
        """Bring back what was being written before; what came after Enter stays behind it."""
        self.keep_draft()
        session.writing.leave_editing(session.writing.draft.expanded)
        if session is self.active:
            self.show_draft()

    @on(TabBar.Chosen)
    async def _on_tab_chosen(self, event: TabBar.Chosen) -> None:
        if not isinstance(event, TabBar.CloseClicked):
            await self.activate(self.tabs.index_of(event.tab_id))

    @on(TabBar.CloseClicked)
    async def _on_tab_close(self, event: TabBar.CloseClicked) -> None:
        await self.ask_close(self.tabs.index_of(event.tab_id))

    @on(TabBar.NewClicked)
    async def _on_tab_new(self) -> None:
        await self.action_new_tab()

    @on(StatusLine.HintClicked)
    async def _on_hint_clicked(self, event: StatusLine.HintClicked) -> None:
        keys = self.context.settings.keys
        named = [action for action in actions.ACTIONS if actions.label_of(action.id, keys) == event.key]
        for action in named[:1]:
            await self.run_action(action.id)

    @on(TabBar.Stepped)
    async def _on_tab_step(self, event: TabBar.Stepped) -> None:
        await self.activate(self.tabs.position + event.step)

    def on_transcript_copy_requested(self, event: "Transcript.CopyRequested") -> None:
        """Copy what the transcript gives."""
        self.copy(event.text, f"{event.what}. " if event.what else "")

    def action_tab_settings(self) -> None:
        """Show the chat's system prompt and sampling settings."""
        from app.screens.dialogs.tab_settings import TabSettings

        session = self.active
        if self.may_write():
            screen = TabSettings(session.conversation, session.model)
            self.ask(screen, lambda _: session.settings_changed())

    def action_engine_view(self) -> None:
        """Show what the engine does, block by block."""
        from app.screens.engine_view.screen import EngineView

        keys = actions.keys_of(actions.named("engine_view"), self.context.settings.keys)
        view = EngineView(self.context.engine, lambda: self.tabs.sessions, lambda: self.active, keys)
        self.cover(view, lambda chat: self.tabs.index_of(chat) if chat is not None else self.tabs.position)

    def action_toggle_panel(self) -> None:
        """Show or hide the live panel."""
        self.beat.toggle_panel()

    def action_quit_app(self) -> None:
        """Leave; everything is saved on the way out, and what cannot be is asked about."""
        self.leave()

    def _keep_early(self) -> None:
        """Keep what was written before the chats were there as the draft of a chat of its own."""
        texts = [*self._sent_early, self.composer.draft.expanded]
        if any(text.strip() for text in texts):
            conversation = self.context.new_conversation()
            conversation.draft = "\n\n".join(text for text in texts if text.strip())
            self.context.history.save(conversation)

    def shut_down(self) -> None:
        """Save everything: the draft, the tabs and the text of answers that are still being written."""
        self._telling.end()
        self.beat.stop()
        self._cost.close()
        if not self.tabs.sessions:
            self._keep_early()
            return
        self.keep_draft()
        self.tabs.save()
        for session in self.tabs.sessions:
            session.shut_down()
