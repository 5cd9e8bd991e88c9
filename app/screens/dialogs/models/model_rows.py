"""The rows of the model picker: models that are there, and models that can be fetched."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from textual.content import Content

from app.models.builtin import BUILTIN_TITLE, is_builtin
from app.models.listed.listing import ModelFile
from app.models.listed.order import Known, Order
from app.screens.fetching import Fetchable
from app.settings.servers.endpoints import Endpoint
from app.settings.words import age_text, size_text
from app.terminal.controls import clean
from app.widgets.lines import bar, fit

if TYPE_CHECKING:
    from app.fetch.fetch import Fetch

_BAR = 20


@dataclass(frozen=True, slots=True)
class Heading:
    """What stands above a group; nothing to choose."""

    title: str


@dataclass(frozen=True, slots=True)
class Remote:
    """A model of an endpoint, or an endpoint that lists none."""

    path: Path
    title: str
    endpoint: Endpoint
    context_length: int | None = None
    problem: str | None = None


Row = ModelFile | Fetchable | Heading | Remote


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    width: int
    right: bool = False


_SIZE, _TYPE = _Column("Size", 9, True), _Column("Type", 9)
_SORTED = {
    Order.USED: _Column("Last used", 9, True),
    Order.SPEED: _Column("Speed", 9, True),
    Order.DATE: _Column("Date", 9, True),
}
_CONTEXT = _Column("Context", 9, True)
_NARROW = 58
_MARKS = 3


def title_of(model: ModelFile) -> str:
    """What a model is called in lists."""
    return f"{BUILTIN_TITLE} (built in)" if is_builtin(model.path) else model.title


def key_of(row: Row) -> str:
    """What a row is found by when the list is filled again."""
    if isinstance(row, ModelFile | Remote):
        return str(row.path)
    return row.what if isinstance(row, Fetchable) else row.title


class RowPainter:
    """Lays rows out for one width of the list. now: in seconds since 1970."""

    def __init__(
        self, width: int, current: Path | None, jobs: "Mapping[str, Fetch]", known: Known, now: float
    ) -> None:
        self._width = max(40, width)
        last = _SORTED.get(known.order, _CONTEXT)
        self._columns = (_SIZE, last) if self._width < _NARROW else (_SIZE, _TYPE, last)
        self._name = self._width - sum(column.width + 2 for column in self._columns) - _MARKS
        self._current = current
        self._jobs = jobs
        self._known = known
        self._now = now

    def header(self) -> str:
        """The titles of the columns."""
        cells = ("  " + fit(column.title, column.width, right=column.right) for column in self._columns)
        return " " * _MARKS + fit("Name", self._name) + "".join(cells)

    def row(self, row: Row) -> Content:
        """Draw one row."""
        if isinstance(row, Heading):
            return Content.assemble(f"\n{'':{_MARKS}}", (row.title, "$foreground 50%"))
        if isinstance(row, Remote):
            return self._remote(row)
        return self._model(row) if isinstance(row, ModelFile) else self._fetchable(row)

    def _remote(self, row: Remote) -> Content:
        grey = "$foreground 50%"
        parts = [("●  " if row.path == self._current else "   ", "$accent")]
        if row.problem is not None:
            title = fit(clean(row.title), self._width - _MARKS).rstrip()
            return Content.assemble(*parts, (title, grey), self._below(row.problem, "$error"))
        context = f"{row.context_length:,}" if row.context_length else "?"
        cells = {"Type": "remote", "Context": context}
        parts.append((fit(clean(row.title), self._name), "bold"))
        for column in self._columns:
            text = fit(cells.get(column.title, "–"), column.width, right=column.right)
            parts.append(("  " + text, "$foreground 70%"))
        return Content.assemble(*parts)

    def _model(self, model: ModelFile) -> Content:
        usable = model.problem is None
        parts: list[tuple[str, str]] = [
            ("●" if model.path == self._current else " ", "$accent"),
            ("★ " if self._known.is_favourite(model) else "  ", "$warning"),
            (fit(title_of(model), self._name), "bold" if usable else "$foreground 50%"),
        ]
        for column in self._columns:
            text = fit(self._cell(model, column.title), column.width, right=column.right)
            parts.append(("  " + text, "$foreground 70%"))
        if model.problem is not None:
            parts.append(self._below(model.problem, "$error"))
        elif model.caution is not None:
            parts.append(self._below(model.caution, "$warning"))
        return Content.assemble(*parts)

    def _cell(self, model: ModelFile, column: str) -> str:
        used, tok_s = self._known.used(model), self._known.tok_s(model)
        return {
            "Size": size_text(model.size_bytes),
            "Type": model.quantization,
            "Context": f"{model.context_length:,}" if model.context_length else "?",
            "Last used": age_text(self._now - used) if used else "–",
            "Speed": f"{tok_s:,.0f} tok/s" if tok_s else "–",
            "Date": age_text(self._now - model.modified) if model.modified else "–",
        }[column]

    def _fetchable(self, row: Fetchable) -> Content:
        grey = "$foreground 50%"
        title = (fit(row.title, self._width - _MARKS).rstrip(), grey if row.shortage else "")
        job = self._jobs.get(row.what)
        under = self._job(job) if job is not None else ()
        if not under and row.begun:
            under = (self._below(f"begun: {row.begun} are there", "$accent"),)
        elif not under:
            about = " · ".join(filter(None, (row.shortage or row.terms, row.good_at)))
            under = (self._below(about, grey if row.shortage else "$foreground 70%"),) if about else ()
        return Content.assemble(("↓  ", grey if row.shortage else "$accent"), title, *under)

    def _job(self, job: "Fetch") -> tuple[tuple[str, str], ...]:
        """How a fetch goes on; () where there is none any more."""
        from app.fetch.fetch import State
        from app.fetch.words import describe

        progress = job.progress
        if progress.state is State.FAILED:
            return (self._below(progress.error or "it failed", "$error"),)
        if progress.state is State.PAUSED:
            return (self._below(f"paused at {describe(progress)}", "$warning"),)
        if progress.ended:
            return ()
        done = progress.done / progress.total if progress.total else 0.0
        colours = {"done": "$accent", "rest": "$foreground 20%"}
        cells = bar(_BAR, [(min(1.0, done), "done")], "rest")
        text = fit(describe(progress), self._width - _BAR - _MARKS - 1).rstrip()
        return (
            (f"\n{'':{_MARKS}}", ""),
            *((part, colours[style]) for part, style in cells),
            (f" {text}", ""),
        )

    def _below(self, text: str, style: str) -> tuple[str, str]:
        return f"\n{'':{_MARKS}}{fit(clean(text), self._width - _MARKS).rstrip()}", style
