"""The engine view's screen: it asks for a close look a few times a second and shows it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from app.chat.session import ChatSession
from app.models.loader import EngineService
from app.screens.compositor import paint_dirty_rows_only
from app.screens.engine_view import contexts, figures
from app.screens.engine_view.block_map import BlockMap
from app.screens.engine_view.chat_table import ChatRow, table_rows
from app.screens.engine_view.kv_map import KVMapView
from app.screens.engine_view.pixels import Pixels
from app.screens.engine_view.timeline import SECONDS, Timeline
from app.settings.chat_colors import NAMES
from app.terminal.later import later
from app.widgets import contents
from app.widgets.lines import LineWidget, Row, pair
from app.widgets.sentence import engine_sentence
from engine import DeviceUse, EngineDetail, KVPool

_PERIOD = 0.25
_WORDS_EVERY = 2
"""Looks after which figures are written anew: nobody reads them faster."""
_DEVICE_PERIOD = 2.0
_KEYS = (
    *(("Enter", "go to the chat"), ("n", "next chat"), ("e", "evict"), ("s", "save")),
    *(("+ -", "zoom"), ("Tab", "next pool")),
)


class ChatLines(LineWidget):
    """Rows of text in which chats have their colours."""

    COMPONENT_CLASSES: ClassVar = {f"line--{name}" for name in (*NAMES, "limit", "kept")}


class EngineView(Screen[str | None]):
    """Ends with the id of the chat to go to, or with nothing."""

    CSS_PATH: ClassVar = ["engine_view.tcss"]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "Back", show=False),
        Binding("tab,right_square_bracket", "pool(1)", show=False, priority=True),
        Binding("e", "evict", show=False),
        Binding("s", "save", show=False),
        Binding("shift+tab,left_square_bracket", "pool(-1)", show=False, priority=True),
    ]
    AUTO_FOCUS = "KVMapView"

    def __init__(
        self,
        engine: EngineService,
        sessions: Callable[[], Sequence[ChatSession]],
        active: Callable[[], ChatSession],
        keys: str,
    ) -> None:
        """keys: what else closes the view, as Textual names them."""
        super().__init__()
        self._engine, self._sessions, self._active = engine, sessions, active
        self._detail: EngineDetail | None = None
        self._use: DeviceUse | None = None
        self._pool = 0
        self._timeline = Timeline()
        self._looks = 0
        paint_dirty_rows_only(self)
        self._keys_back = frozenset(key.strip() for key in keys.split(","))

    def compose(self) -> ComposeResult:
        """Figures, map, timeline, table, keys."""
        yield ChatLines(id="head")
        yield ChatLines(id="map_head")
        yield KVMapView(id="map")
        yield ChatLines(id="under")
        yield ChatLines(id="time_head")
        yield Pixels(id="timeline")
        yield ChatLines(id="chats")
        yield ChatLines(id="foot")

    def on_mount(self) -> None:
        """Begin to look. What was taken last may be old, so it only asks."""
        self._engine.detail()
        self.set_interval(_PERIOD, self.look)
        self.set_interval(_DEVICE_PERIOD, self._ask_device)
        later(self, _PERIOD / 4, self.look)
        self._ask_device()
        self._fit()

    def on_resize(self) -> None:
        """Share the new height out."""
        self._fit()
        self.call_after_refresh(self._draw)

    def on_key(self, event: events.Key) -> None:
        """Go back by the keys that open the view, too."""
        if event.key in self._keys_back:
            event.stop()
            self.dismiss()

    def look(self) -> None:
        """Take the newest close look and show it."""
        if not self.is_current:
            return
        self._detail = self._engine.detail() or self._detail
        self._draw(words=not self._looks % _WORDS_EVERY)
        self._looks += 1

    def _ask_device(self) -> None:
        """Have the driver asked, which may take a while."""
        if self.is_current:
            self.run_worker(self._read_device(), group="device", exclusive=True)

    async def _read_device(self) -> None:
        self._use = await asyncio.to_thread(self._engine.device_use)

    def _fit(self) -> None:
        """Share the height: the map has what others leave."""
        height, chats = self.size.height, len(self._sessions())
        head = 1 + self._figure_rows
        rest = max(0, height - head - 4)
        table = min(1 + chats, max(2, rest // 3))
        ticks = min(8, max(3, rest // 4))
        for name, lines in (("head", head), ("chats", table), ("timeline", ticks)):
            self.query_one(f"#{name}").styles.height = lines
        self.query_one("#map").styles.height = max(1, rest - table - ticks)

    @property
    def _figure_rows(self) -> int:
        height = self.size.height
        return 0 if height < 18 else 1 if height < 34 else 2

    @property
    def pools(self) -> Sequence[KVPool]:
        """The pools that can be shown."""
        return self._detail.pools if self._detail is not None else ()

    def action_pool(self, step: int) -> None:
        """Show another pool."""
        if self.pools:
            self._pool = (self._pool + step) % len(self.pools)
            self._draw()

    @on(KVMapView.Moved)
    def _on_moved(self) -> None:
        self._draw_words()

    @on(KVMapView.Chosen)
    def _on_chosen(self) -> None:
        chat = self._chat_under_cursor()
        if any(session.conversation.id == chat for session in self._sessions()):
            self.dismiss(chat)

    def action_evict(self) -> None:
        """Forget what is kept of the chat under the cursor."""
        self._ask_engine(contexts.evict)

    def action_save(self) -> None:
        """Save the context of the chat under the cursor now."""
        self._ask_engine(contexts.save)

    def _ask_engine(self, ask: Callable[[EngineService, str, str], Awaitable[str]]) -> None:
        chat = self._chat_under_cursor()
        if chat is None:
            self.notify("No chat is known whose blocks these are.")
        else:
            self.run_worker(self._say(ask(self._engine, chat, self._name_of(chat))), exit_on_error=False)

    async def _say(self, answer: Awaitable[str]) -> None:
        self.notify(await answer)
        self.look()

    def _chat_under_cursor(self) -> str | None:
        """The id of the chat that holds what the cursor stands on, or else of which it is kept."""
        view = self.query_one(KVMapView)
        if view.blocks is None:
            return None
        sequence = view.blocks.owner_of(*view.under_cursor)
        if sequence is not None:
            writing = (s.conversation.id for s in self._sessions() if s.is_writing(sequence))
            return next(writing, None)
        return next(iter(dict(view.blocks.kept_of(*view.under_cursor).most_common(1))), None)

    def _draw(self, *, words: bool = True) -> None:
        detail = self._detail
        if detail is None or not self.is_mounted:
            self._rows("head", [((" The engine is starting…", "dim"),)])
            return
        contents.assign_stats(self._sessions(), detail.stats)
        self._pool = min(self._pool, max(0, len(detail.pools) - 1))
        places = {
            number: place
            for place, session in enumerate(self._sessions())
            for answer in session.running
            if (number := answer.generation.sequence_id) is not None
        }
        if detail.pools:
            self.query_one(KVMapView).show(BlockMap(detail.pools[self._pool]), places)
        self._draw_ticks()
        if words:
            self._draw_words()

    def _draw_ticks(self) -> None:
        chart, now = self.query_one("#timeline", Pixels), time.perf_counter()
        self._timeline.add(self._engine.tick_log(), chart.size.width, now)
        chart.paint(self._timeline.draw(2 * chart.size.height, now))

    def _draw_words(self) -> None:
        detail, width = self._detail, self.size.width
        if detail is None:
            return
        head: Row = ((f" {engine_sentence(detail.stats)}", "strong"),)
        self._rows("head", [head, *figures.figure_rows(detail.stats, self._use, width, self._figure_rows)])
        self._draw_map_words(width)
        self._rows("time_head", [self._time_heading(width)])
        table = self.query_one("#chats").size.height
        self._rows("chats", table_rows(self._chat_rows(detail), width, table))
        keys = [
            span for key, what in self._keys(width) for span in ((f" {key} ", "accent"), (f"{what} ", "dim"))
        ]
        self._rows("foot", [pair(tuple(keys), (("Esc ", "accent"), ("back ", "dim")), width)])

    def _draw_map_words(self, width: int) -> None:
        view = self.query_one(KVMapView)
        if view.blocks is None:
            self._rows("map_head", [figures.heading("Context memory", "no model is open", (), width)])
            return
        pool = view.blocks.pool
        title = figures.pool_title(pool, self._pool + 1, len(self.pools))
        scale = figures.scale_row(pool, view.layout_of_dots.per_dot)
        self._rows("map_head", [figures.heading("Context memory", title, scale, width)])
        host = figures.host_text(pool)
        names, room = (self._title_of, self._name_of), width - len(host) - 2
        under = figures.cursor_row(view.blocks, *view.under_cursor, *names, room)
        self._rows("under", [pair(under, ((host, "dim"), (" ", "")), width)])

    def _time_heading(self, width: int) -> Row:
        ticks = self._timeline
        legend: Row = (("■", "streaming"), (" writing ", "dim"), ("■", "reading"), (" reading ", "dim"))
        legend += (("▄", "queued"), (" waiting", "dim"))
        if ticks.limit_ms:
            legend += (("  ▀", "limit"), (f" budget {ticks.limit_ms:.0f} ms", "dim"))
        longest = f"last {SECONDS:.0f} s, longest {ticks.longest_ms:.0f} ms"
        return figures.heading("Ticks", longest, legend, width)

    def _chat_rows(self, detail: EngineDetail) -> list[ChatRow]:
        details = {sequence.sequence_id: sequence for sequence in detail.sequences}
        active = self._active()
        rows = []
        for place, session in enumerate(self._sessions()):
            answer = session.conversation.last_answer()
            item, number = contents.tab_item(session), session.sequence_id
            running = details.get(number) if number is not None else None
            last = answer.stats if answer is not None else None
            rows.append(ChatRow(item, place, session is active, session.stats, running, last))
        return rows

    def _keys(self, width: int) -> list[tuple[str, str]]:
        """The keys that fit; the one for pools where there are several."""
        keys = list(_KEYS if len(self.pools) > 1 else _KEYS[:-1])
        while keys and sum(len(key) + len(what) + 3 for key, what in keys) > width - len("Esc back ") - 1:
            keys.pop()
        return keys

    def _title_of(self, sequence_id: int) -> str:
        """Name who holds blocks: the chat's title, or what the request is called."""
        for session in self._sessions():
            if session.is_writing(sequence_id):
                return session.conversation.title
        return "a chat that was closed"

    def _name_of(self, chat: str) -> str:
        """Name whose blocks are kept."""
        titles = {s.conversation.id: s.conversation.title for s in self._sessions()}
        return titles.get(chat, "a chat that was closed")

    def _rows(self, name: str, rows: Sequence[Row]) -> None:
        self.query_one(f"#{name}", LineWidget).set_rows(rows)
