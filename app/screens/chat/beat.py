"""What stands around the transcript and changes while tabs work: tab bar, panel, status line, notices."""

import asyncio

from textual.timer import Timer

from app.chat.events import TabState
from app.screens.chat.base import ChatBase
from app.screens.chat.compositor import DirtyCompositor
from app.screens.context import AppContext
from app.settings import actions
from app.widgets import contents
from app.widgets.live_panel import LivePanel
from app.widgets.notice_bar import NoticeBar
from app.widgets.sparkline import SpeedHistory
from app.widgets.status_line import StatusLine
from app.widgets.tab_bar import TabBar
from engine.api.stats import EngineStats

_BEAT = 0.2
_PANEL_BEATS = 2
_LINGER = 12
"""Beats after the last work: the engine's speeds are over the last second and have to run out."""
_STILL = (TabState.IDLE, TabState.PAUSED, TabState.ERROR)
"""States in which no number of a tab changes."""
_PANEL_FROM = 120


class LiveChrome(ChatBase):
    """Draws all of it from sessions and the engine's numbers: on events, and in beats while tabs work."""

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self._compositor = DirtyCompositor()
        self._frame = 0
        self._beats = self._linger = 0
        self._last_beat = 0.0
        self._beat: Timer | None = None
        self._panel_choice: bool | None = {"on": True, "off": False}.get(context.settings.general.panel)
        self._speeds: dict[str, SpeedHistory] = {}

    def start_beat(self) -> None:
        """Make the beat's timer; it runs once something works."""
        self._beat = self.set_interval(_BEAT / 2, self._on_beat_due, pause=True)

    def refresh_chrome(self) -> None:
        """Bring everything around the transcript up to date and keep the beat going while tabs work."""
        if not self.is_mounted or not self.sessions:
            return
        stats = self.context.engine.stats()
        contents.assign_stats(self.sessions, stats)
        items = [contents.tab_item(session) for session in self.sessions]
        self.query_one("#tabs", TabBar).show(items, self.active.conversation.id, self._frame)
        keys, session = self.context.settings.keys, self.active
        hints = actions.hints(keys, busy=session.busy, paused=session.paused)
        self.query_one("#status", StatusLine).show(contents.status_item(session, stats), hints)
        notices = self.query_one("#notices", NoticeBar)
        send, _ = actions.writing_keys(enter_sends=self.context.settings.general.enter_sends)
        notices.show(contents.notice_rows(session, self.size.width - 2, send))
        if self._beats % _PANEL_BEATS == 0:
            self._show_panel(stats)
        working = any(item.state not in _STILL for item in items)
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
            contents.panel_tab(session, session is self.active, self._speeds[session.conversation.id])
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
        self.call_after_refresh(self._show_all)

    def _show_all(self) -> None:
        """Do not leave a panel that has just come up empty until its next beat."""
        if self.is_mounted and self.sessions:
            self.refresh_chrome()
            self._show_panel(self.context.engine.stats())

    def action_toggle_panel(self) -> None:
        """Show or hide the live panel."""
        self._panel_choice = not self.query_one("#panel", LivePanel).display
        self._apply_panel()
