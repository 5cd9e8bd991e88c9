"""Choosing a model: those found in the model folders, a path, and those that can be fetched."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.fuzzy import Matcher
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from app.fetch.fetch import State
from app.models.found import ModelSearch
from app.models.listing import ModelFile, read_model
from app.screens.dialogs.fetch_desk import FetchDesk
from app.screens.dialogs.list_keys import move_in
from app.screens.dialogs.model_rows import Heading, Row, RowPainter, key_of
from app.screens.fetching import Fetchable, Fetching
from app.widgets.pick_list import PickList
from app.widgets.words import words

Finder = Callable[[ModelSearch], list[ModelFile]]
_BEAT = 0.25
_SOURCES = ("hf:", "pypi:", "https://", "http://")
_OVER = (State.DONE, State.CANCELLED)
_Row = TypeVar("_Row", ModelFile, Fetchable)


class _Filter(Input):
    """A line that leaves `p` to the picker where that means a fetch."""

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """Tell whether a key writes."""
        mine = super().check_consume_key(key, character)
        return mine and not (key == "p" and self.screen.check_action("pause", ()))


class ModelPicker(ModalScreen[Path | None]):
    """Returns the path of the chosen file."""

    CSS_PATH: ClassVar = ["dialog.tcss", "model_picker.tcss"]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Cancel"),
        Binding("p", "pause", "Pause", priority=True),
        Binding("delete", "cancel", "Cancel the fetch", priority=True),
    ]

    def __init__(
        self, search: ModelSearch, current: Path | None, finder: Finder, fetching: Fetching, wanted: str = ""
    ) -> None:
        """wanted: the word of a model that can be fetched, to begin with."""
        super().__init__()
        self._search = search
        self._current = current
        self._finder = finder
        self._fetching = fetching
        self._at = str(current or "")
        self._wanted = wanted
        """What is highlighted once it is in the list; "" once it was."""
        self._desk = FetchDesk(fetching, self, self._fill)
        self._states: dict[str, State] = {}
        self._found: list[ModelFile] = []
        self._fetchable: list[Fetchable] = []
        self._shown: list[Row] = []
        self._searched = False

    def compose(self) -> ComposeResult:
        """A line to filter with, the list, and where the files come from."""
        with Vertical(classes="dialog"):
            yield Static("Open a model in this chat", classes="heading")
            yield _Filter(
                placeholder="Filter, a .gguf file's path, hf:OWNER/REPO or an address", compact=True
            )
            yield Static("", id="columns")
            yield PickList(id="models", markup=False, compact=True)
            yield Static("Looking for models…", id="foot", classes="foot")

    def on_mount(self) -> None:
        """Look for files off the UI's thread."""
        self._states = self._job_states()
        self.set_interval(_BEAT, self._follow)
        self._scan_again()

    def on_unmount(self) -> None:
        """What servers were asked is wanted no more."""
        self._desk.leave()

    def on_resize(self) -> None:
        """Lay the rows out for the new width."""
        self._fill()

    def _scan_again(self) -> None:
        self.run_worker(self._scan(), exclusive=True, group="scan")

    async def _scan(self) -> None:
        self._found = await asyncio.to_thread(self._finder, self._search)
        self._searched = True
        self._fill()
        stock = await asyncio.to_thread(self._fetching.look_up, self._search)
        for warning in stock.warnings if stock.warnings != self._desk.stock.warnings else ():
            self.notify(warning, severity="warning")
        self._desk.stock = stock
        self._fetchable = stock.fetchable(model.path.stem for model in self._found)
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
            return
        if query.startswith(_SOURCES):
            self._show([Fetchable(query, f"Fetch {query}")])
            return
        found = _matching(query, self._found, lambda row: f"{row.title} {row.quantization}")
        fetchable = _matching(
            query, self._all_fetchable(), lambda row: f"{row.title} {row.what} {row.good_at}"
        )
        heading = [Heading("Can be fetched")] if fetchable else []
        self._show([*found, *heading, *fetchable])

    def _all_fetchable(self) -> list[Fetchable]:
        if not self._searched:
            # What is highlighted before the models are there would stay so.
            return []
        known = {row.what for row in self._fetchable}
        jobs = [job for what, job in self._fetching.jobs.items() if what not in known]
        typed = [Fetchable(job.plan.what, job.plan.title) for job in jobs if job.progress.state not in _OVER]
        return [*typed, *self._fetchable]

    def _show(self, rows: Sequence[Row]) -> None:
        self._shown = list(rows)
        options, painter = self.query_one(OptionList), self._painter
        self.query_one("#columns", Static).update(words(painter.header()))
        options.clear_options()
        options.add_options([Option(painter.row(row), disabled=isinstance(row, Heading)) for row in rows])
        keys = [key_of(row) for row in rows]
        if self._wanted in keys:
            self._at, self._wanted = self._wanted, ""
        first = next((i for i, row in enumerate(rows) if not isinstance(row, Heading)), None)
        options.highlighted = keys.index(self._at) if self._at in keys else first
        self._say_foot()

    @property
    def _painter(self) -> RowPainter:
        width = self.query_one(OptionList).size.width - 3
        return RowPainter(width, self._current, self._fetching.jobs)

    def _draw_rows(self) -> None:
        """Draw what is being fetched again."""
        painter, options = self._painter, self.query_one(OptionList)
        for index, row in enumerate(self._shown):
            if isinstance(row, Fetchable) and row.what in self._fetching.jobs:
                options.replace_option_prompt_at_index(index, painter.row(row))

    @property
    def _row(self) -> Row | None:
        """The row that is highlighted."""
        index = self.query_one(OptionList).highlighted
        return self._shown[index] if index is not None and index < len(self._shown) else None

    def _say_foot(self) -> None:
        row = self._row
        if isinstance(row, Fetchable):
            said = self._desk.foot(row)
        elif not self._searched:
            said = "Looking for models…"
        else:
            home = str(Path.home())
            places = ", ".join(str(folder).replace(home, "~", 1) for folder in self._search.folders)
            said = f"Enter opens · Esc leaves · looked in {places}"
        self.query_one("#foot", Static).update(words(said))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that write are the filter's unless a fetch is highlighted and nothing is written."""
        if action not in ("pause", "cancel"):
            return super().check_action(action, parameters)
        row = self._row
        if not isinstance(row, Fetchable) or self.query_one(Input).value:
            return False
        return self._desk.can_pause(row) if action == "pause" else self._desk.can_cancel(row)

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
            self._desk.move_to(self._at)
            self._say_foot()

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
        elif isinstance(row, ModelFile) and row.problem is not None:
            self.query_one("#foot", Static).update(words(row.problem))
            self.app.bell()
        elif isinstance(row, ModelFile):
            self.dismiss(row.path)


def _matching(query: str, rows: list[_Row], text: Callable[[_Row], str]) -> list[_Row]:
    """The rows that a filter leaves, the best first."""
    if not query:
        return rows
    matcher = Matcher(query)
    scored = [(matcher.match(text(row)), row) for row in rows]
    scored.sort(key=lambda pair: -pair[0])
    return [row for score, row in scored if score > 0]


def _as_path(text: str) -> Path | None:
    """Read a typed or pasted path; quotes around it and a leading ~ are understood."""
    text = text.strip().strip("'\"").removeprefix("file://")
    if not text or text.startswith(_SOURCES):
        return None
    if not (text.startswith(("/", "~", "./", "../")) or text.endswith(".gguf")):
        return None
    return Path(text).expanduser().absolute()
