"""The chat screen: tabs, transcript, live panel, composer and status line, and every action."""

import asyncio
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.timer import Timer
from textual.widgets import TextArea

from app import actions, chrome
from app.context import AppContext
from app.conversation import Conversation, Role
from app.draft import Draft
from app.screens.answer_actions import AnswerActions
from app.session import ChatSession
from app.session_events import (
    AnswerFinished,
    Notice,
    PathChanged,
    SessionEvent,
    TabState,
    TextReturned,
    TextStreamed,
)
from app.welcome import welcome_text
from app.widgets.composer import Composer
from app.widgets.deck import TranscriptDeck
from app.widgets.dirty_compositor import DirtyCompositor
from app.widgets.live_panel import LivePanel
from app.widgets.notice_bar import NoticeBar
from app.widgets.sparkline import SpeedHistory
from app.widgets.status_line import StatusLine
from app.widgets.tab_bar import TabBar
from app.widgets.transcript import Transcript
from engine.stats import EngineStats

_BEAT = 0.2
_PANEL_BEATS = 2
_LINGER = 12
"""Beats after the last work: the engine's speeds are over the last second and have to run out."""
_DRAFT_SECONDS = 0.8
_PANEL_FROM = 120


class ChatScreen(AnswerActions):
    """Owns the tabs. Sessions report here; nobody else touches the widgets."""

    BINDINGS: ClassVar = [*actions.bindings()]
    AUTO_FOCUS = "Composer"

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self._compositor = DirtyCompositor()
        self._frame = 0
        self._beats = self._linger = 0
        self._last_beat = 0.0
        self._beat: Timer | None = None
        self._draft_timer: Timer | None = None
        self._panel_choice: bool | None = {"on": True, "off": False}.get(context.settings.general.panel)
        self._speeds: dict[str, SpeedHistory] = {}

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
        self._beat = self.set_interval(_BEAT / 2, self._on_beat_due, pause=True)
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

    def _add(self, conversation: Conversation) -> ChatSession:
        session = ChatSession(conversation, self.context.services, self._on_session)
        self.sessions.append(session)
        self._speeds[conversation.id] = SpeedHistory()
        return session

    async def _show_active(self) -> None:
        session = self.active
        session.unread = False
        welcome = welcome_text(self.context.locations.models, self.context.model_path(session.conversation))
        await self.deck.show(session, welcome)
        self.composer.draft = session.draft
        self._refresh_past()
        self.code_block = 0
        self.refresh_chrome()

    async def _activate(self, index: int) -> None:
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
            self._take_back(session, event.text)
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
            self.refresh_chrome()

    async def _show_transcript(self) -> None:
        await self.deck.show(self.active)

    def _take_back(self, session: ChatSession, text: str) -> None:
        if session is self.active:
            self.composer.give_back(text)
        else:
            kept = session.draft.expanded
            session.draft = Draft.folded(f"{text}\n\n{kept}" if kept.strip() else text)

    def _refresh_past(self) -> None:
        path = self.active.conversation.path()
        self.composer.set_past([node.text for node in path if node.role is Role.USER])

    def refresh_chrome(self) -> None:
        """Bring everything around the transcript up to date and keep the beat going while tabs work."""
        if not self.is_mounted or not self.sessions:
            return
        stats = self.context.engine.stats()
        chrome.assign_stats(self.sessions, stats)
        items = [chrome.tab_item(session) for session in self.sessions]
        self.query_one("#tabs", TabBar).show(items, self.active.conversation.id, self._frame)
        self.query_one("#status", StatusLine).show(chrome.status_item(self.active, stats))
        notices = self.query_one("#notices", NoticeBar)
        notices.show(chrome.notice_rows(self.active, self.size.width - 2))
        if self._beats % _PANEL_BEATS == 0:
            self._show_panel(stats)
        working = any(item.state not in (TabState.IDLE, TabState.ERROR) for item in items)
        self._linger = _LINGER if working else max(0, self._linger - 1)
        if self._beat is not None:
            (self._beat.resume if self._linger else self._beat.pause)()

    def _show_panel(self, stats: EngineStats | None) -> None:
        panel = self.query_one("#panel", LivePanel)
        if not panel.display:
            return
        now = asyncio.get_running_loop().time()
        for session in self.sessions:
            if session.state is TabState.GENERATING and session.stats is not None:
                self._speeds[session.conversation.id].add(session.stats.tok_s, now)
        tabs = [
            chrome.panel_tab(session, session is self.active, self._speeds[session.conversation.id])
            for session in self.sessions
        ]
        panel.show(tabs, stats, self._frame)

    def beat_with_text(self) -> None:
        """Beat in the frame that paints new text, if a beat is due: two paints cost twice as much."""
        if self._linger and asyncio.get_running_loop().time() - self._last_beat >= _BEAT:
            self.call_later(self._on_beat)

    def _on_beat_due(self) -> None:
        # Late by half a beat: while text streams its frames carry the beats.
        if asyncio.get_running_loop().time() - self._last_beat >= _BEAT * 1.5:
            self._on_beat()

    def _on_beat(self) -> None:
        self._last_beat = asyncio.get_running_loop().time()
        self._beats += 1
        if self.app.animation_level != "none":
            self._frame += 1
        self.refresh_chrome()
        if not self._linger:
            self._beats = 0
            self._show_panel(self.context.engine.stats())

    def on_resize(self) -> None:
        """Show the live panel where there is room for it."""
        self._apply_panel()

    def _apply_panel(self) -> None:
        wide = self.app.size.width >= _PANEL_FROM
        shown = wide if self._panel_choice is None else self._panel_choice
        panel = self.query_one("#panel", LivePanel)
        panel.display = shown
        panel.set_class(not wide, "-over")
        self.call_after_refresh(self.refresh_chrome)

    @on(TextArea.Changed, "#composer")
    def _on_typed(self) -> None:
        if self._draft_timer is None:
            self._draft_timer = self.set_timer(_DRAFT_SECONDS, self._on_draft_due)

    def _on_draft_due(self) -> None:
        self._draft_timer = None
        self.keep_draft()

    @on(Composer.Submitted)
    def _on_submitted(self, event: Composer.Submitted) -> None:
        session = self.active
        if session.editing is not None:
            node_id, session.editing = session.editing, None
            self.composer.remove_class("-editing")
            session.edit(node_id, event.text)
        else:
            session.send(event.text)
        self.keep_draft()

    @on(TabBar.Chosen)
    async def _on_tab_chosen(self, event: TabBar.Chosen) -> None:
        if not isinstance(event, TabBar.CloseClicked):
            await self._activate(self._index(event.tab_id))

    @on(TabBar.CloseClicked)
    async def _on_tab_close(self, event: TabBar.CloseClicked) -> None:
        await self._ask_close(self._index(event.tab_id))

    @on(TabBar.NewClicked)
    async def _on_tab_new(self) -> None:
        await self.action_new_tab()

    @on(TabBar.Stepped)
    async def _on_tab_step(self, event: TabBar.Stepped) -> None:
        await self._activate(self._active + event.step)

    @on(Transcript.CopyRequested)
    def _on_copy_requested(self, event: Transcript.CopyRequested) -> None:
        self.copy(event.text)

    def _index(self, tab_id: str) -> int:
        return next((i for i, s in enumerate(self.sessions) if s.conversation.id == tab_id), -1)

    async def action_new_tab(self) -> None:
        """Open an empty chat with the active tab's model."""
        conversation = self.context.new_conversation()
        if self.active.model is not None:
            conversation.model_path = str(self.active.model.path)
        session = self._add(conversation)
        self.context.history.save(conversation)
        session.open_model(self.context.model_path(conversation))
        await self._activate(len(self.sessions) - 1)

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
        from app.screens.confirm import ConfirmScreen

        question = f"“{session.conversation.title}” is still answering. Stop it and close the tab?"
        screen = ConfirmScreen(question, "Stop and close", "Keep it open")
        self.ask(screen, lambda yes: self.call_later(self._close, session) if yes else None)

    async def _close(self, session: ChatSession) -> None:
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

    def action_rename_tab(self) -> None:
        """Ask for another title."""
        from app.screens.rename import RenameScreen

        session = self.active
        self.ask(RenameScreen(session.conversation.title), session.rename)

    async def action_previous_tab(self) -> None:
        """Go one tab left, round the end."""
        await self._activate((self._active - 1) % len(self.sessions))

    async def action_next_tab(self) -> None:
        """Go one tab right, round the end."""
        await self._activate((self._active + 1) % len(self.sessions))

    async def action_go_to_tab(self, number: int) -> None:
        """Go to the tab with this number, from 1."""
        await self._activate(number - 1)

    def action_choose_model(self) -> None:
        """Show the model picker."""
        from app.screens.model_picker import ModelPicker

        session = self.active
        current = Path(session.conversation.model_path) if session.conversation.model_path else None
        picker = ModelPicker(self.context.model_folders(), current, self.context.find_models)
        self.ask(picker, session.open_model)

    def action_tab_settings(self) -> None:
        """Show the chat's system prompt and sampling settings."""
        from app.screens.tab_settings import TabSettings

        session = self.active
        self.ask(TabSettings(session.conversation), lambda _: session.settings_changed())

    def action_toggle_panel(self) -> None:
        """Show or hide the live panel."""
        self._panel_choice = not self.query_one("#panel", LivePanel).display
        self._apply_panel()

    def action_choose_theme(self) -> None:
        """Search the themes."""
        self.app.search_themes()

    def action_palette(self) -> None:
        """Search every command."""
        self.app.action_command_palette()

    def action_help(self) -> None:
        """Show all keys."""
        from app.screens.help import HelpScreen

        self.app.push_screen(HelpScreen(self.context.settings.keys))

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
