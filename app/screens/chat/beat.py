"""What stands around the transcript and changes while tabs work: tab bar, panel, status line, notices."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from textual.screen import Screen
from textual.timer import Timer

from app.chat.events import TabState
from app.chat.session import ChatSession
from app.screens.chat.tabs import Tabs
from app.screens.context import AppContext
from app.settings import actions
from app.widgets import contents
from app.widgets.live_panel import LivePanel
from app.widgets.notice_bar import NoticeBar
from app.widgets.sparkline import SpeedHistory
from app.widgets.status_line import StatusLine
from app.widgets.tab_bar import TabBar
from engine import EngineStats

_BEAT = 0.2
_PANEL_BEATS = 2
_LINGER = 12
"""Beats after the last work: the engine's speeds are over the last second and have to run out."""
_STILL = (TabState.IDLE, TabState.PAUSED, TabState.ERROR)
"""States in which no number of a tab changes."""
_PANEL_FROM, _WIDE_PANEL_FROM = 120, 140
"""Columns of the terminal from which there is room for a narrow panel, and for a wide one."""


class Beat:
    """Draws all of it from sessions and the engine's numbers: on events, and in beats while tabs work."""

    def __init__(self, screen: Screen[None], context: AppContext, tabs: Tabs) -> None:
        self._screen = screen
        self._context = context
        self._tabs = tabs
        self._frame = 0
        self._beats = self._linger = 0
        self._last_beat = 0.0
        self._timer: Timer | None = None
        self._tell: Callable[[Sequence[ChatSession], ChatSession], None] | None = None
        self._panel_choice = _panel_choice(context)
        self.covered = False
        """Whether another screen hides everything. What is drawn behind one makes Textual paint that anew."""
        self._warned = False
        """Whether the reader has seen what was wrong at the start."""
        self._speeds: defaultdict[str, SpeedHistory] = defaultdict(SpeedHistory)

    def start(self, tell: Callable[[Sequence[ChatSession], ChatSession], None]) -> None:
        """Make the timer; it runs once something works. `tell` hears of every drawing, and of which chats."""
        self._tell = tell
        self._timer = self._screen.set_interval(_BEAT / 2, self._on_beat_due, pause=True)

    def stop(self) -> None:
        """Beat no more."""
        if self._timer is not None:
            self._timer.stop()

    def end_warnings(self) -> None:
        """Say no more what was wrong at the start; the help still does."""
        self._warned = True
        if self._tabs.sessions and contents.nearly_full(self._tabs.active) is not None:
            self._tabs.active.warned = True
        self.draw()

    def forget(self, session: ChatSession) -> None:
        """Drop the speeds of a closed chat."""
        self._speeds.pop(session.conversation.id, None)

    def draw(self) -> None:
        """Bring everything around the transcript up to date and keep the beat going while tabs work."""
        if not self._drawable:
            return
        settings, session = self._context.settings, self._tabs.active
        stats = self._context.engine.stats()
        contents.assign_stats(self._tabs.sessions, stats)
        if self._tell is not None:
            self._tell(self._tabs.sessions, session)
        items = [contents.tab_item(session) for session in self._tabs.sessions]
        find = self._screen.query_one
        find("#tabs", TabBar).show(items, session.conversation.id, self._frame)
        hints = actions.hints(settings.keys, busy=session.busy, paused=session.paused)
        if not session.busy:
            hints.insert(0, (settings.general.writing_keys[1], "New line"))
        history = self._context.history
        fetching = self._context.fetching.words
        status = replace(contents.status_item(session, stats), unsaved=history.unsaved, fetching=fetching)
        find("#status", StatusLine).show(status, hints)
        send, _ = settings.general.writing_keys
        width = self._screen.size.width - 2
        rows = contents.standing_rows(history.standing, history.notices, width, session.key("stop"))
        rows += contents.notice_rows(session, width, send)
        if session.read_only:
            rows.append(contents.read_only_row(session.key("take_over")))
        if self._context.warnings and not self._warned:
            rows.append(contents.start_row(self._context.warnings, width, session.key("help")))
        find("#notices", NoticeBar).show(rows)
        if self._beats % _PANEL_BEATS == 0:
            self._draw_panel(stats)
        working = any(item.state not in _STILL for item in items)
        self._linger = _LINGER if working else max(0, self._linger - 1)
        if self._timer is not None:
            (self._timer.resume if self._linger else self._timer.pause)()

    def with_text(self) -> None:
        """Beat in the frame that paints new text, if a beat is due: two paints cost twice as much."""
        if self._linger and asyncio.get_running_loop().time() - self._last_beat >= _BEAT:
            self._screen.call_later(self._on_beat)

    def fit_panel(self) -> None:
        """Show the live panel where the reader wants it, or else where there is room for it."""
        columns = self._screen.app.size.width
        wide = columns >= _PANEL_FROM
        panel = self._panel
        panel.display = wide if self._panel_choice is None else self._panel_choice
        panel.set_class(not wide, "-over")
        panel.set_class(wide and columns < _WIDE_PANEL_FROM, "-narrow")
        self._screen.call_after_refresh(self._draw_all)

    def settings_changed(self) -> None:
        """Show the panel as the settings have it now, and every key by its new name."""
        self._panel_choice = _panel_choice(self._context)
        self.fit_panel()

    def toggle_panel(self) -> None:
        """Show or hide the live panel."""
        self._panel_choice = not self._panel.display
        self.fit_panel()

    @property
    def _panel(self) -> LivePanel:
        return self._screen.query_one("#panel", LivePanel)

    @property
    def _drawable(self) -> bool:
        return self._screen.is_mounted and bool(self._tabs.sessions) and not self.covered

    def _draw_panel(self, stats: EngineStats | None) -> None:
        panel = self._panel
        if not panel.display:
            return
        now = asyncio.get_running_loop().time()
        tabs = []
        for session in self._tabs.sessions:
            speeds = self._speeds[session.conversation.id]
            if session.state is TabState.GENERATING and session.stats is not None:
                speeds.add(session.stats.tok_s, now)
            tabs.append(contents.panel_tab(session, session is self._tabs.active, speeds))
        panel.show(tabs, stats, self._frame)

    def _on_beat_due(self) -> None:
        # Late by half a beat: while text streams its frames carry the beats.
        if asyncio.get_running_loop().time() - self._last_beat >= _BEAT * 1.5:
            self._on_beat()

    def _on_beat(self) -> None:
        self._last_beat = asyncio.get_running_loop().time()
        self._beats += 1
        if self._screen.app.animation_level != "none":
            self._frame += 0 if self._context.settings.terminal.motion == "reduced" else 1
        self.draw()
        if not self._linger:
            self._beats = 0
            self._draw_panel(self._context.engine.stats())

    def _draw_all(self) -> None:
        """Do not leave a panel that has just come up empty until its next beat."""
        if self._drawable:
            self.draw()
            self._draw_panel(self._context.engine.stats())


def _panel_choice(context: AppContext) -> bool | None:
    """Whether the settings show the panel; None where that goes by the width."""
    return {"on": True, "off": False}.get(context.settings.general.panel)
