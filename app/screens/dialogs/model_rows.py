"""The rows of the model picker: models that are there, and models that can be fetched."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from textual.content import Content

from app.models.builtin import BUILTIN_TITLE, is_builtin
from app.models.listing import ModelFile
from app.screens.fetching import Fetchable
from app.settings.words import size_text
from app.terminal.controls import clean
from app.widgets.lines import bar, fit

if TYPE_CHECKING:
    from app.fetch.fetch import Fetch

_BAR = 20


@dataclass(frozen=True, slots=True)
class Heading:
    """What stands above a group; nothing to choose."""

    title: str


Row = ModelFile | Fetchable | Heading


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    width: int
    right: bool = False


_COLUMNS = (_Column("Size", 9, True), _Column("Type", 9), _Column("Context", 9, True))


def key_of(row: Row) -> str:
    """What a row is found by when the list is filled again."""
    if isinstance(row, ModelFile):
        return str(row.path)
    return row.what if isinstance(row, Fetchable) else row.title


class RowPainter:
    """Lays rows out for one width of the list."""

    def __init__(self, width: int, current: Path | None, jobs: "Mapping[str, Fetch]") -> None:
        self._width = max(40, width)
        self._name = self._width - sum(column.width + 2 for column in _COLUMNS) - 2
        self._current = current
        self._jobs = jobs

    def header(self) -> str:
        """The titles of the columns."""
        cells = ("  " + fit(column.title, column.width, right=column.right) for column in _COLUMNS)
        return "  " + fit("Name", self._name) + "".join(cells)

    def row(self, row: Row) -> Content:
        """Draw one row."""
        if isinstance(row, Heading):
            return Content.assemble("\n  ", (row.title, "$foreground 50%"))
        return self._model(row) if isinstance(row, ModelFile) else self._fetchable(row)

    def _model(self, model: ModelFile) -> Content:
        cells = (
            size_text(model.size_bytes),
            model.quantization,
            f"{model.context_length:,}" if model.context_length else "?",
        )
        usable = model.problem is None
        mark = "●" if model.path == self._current else " "
        title = f"{BUILTIN_TITLE} (built in)" if is_builtin(model.path) else model.title
        parts: list[tuple[str, str]] = [
            (f"{mark} ", "$accent"),
            (fit(title, self._name), "bold" if usable else "$foreground 50%"),
        ]
        for text, column in zip(cells, _COLUMNS, strict=True):
            parts.append(("  " + fit(text, column.width, right=column.right), "$foreground 70%"))
        if model.problem is not None:
            parts.append(self._below(model.problem, "$error"))
        elif model.caution is not None:
            parts.append(self._below(model.caution, "$warning"))
        return Content.assemble(*parts)

    def _fetchable(self, row: Fetchable) -> Content:
        grey = "$foreground 50%"
        title = (fit(row.title, self._width - 2).rstrip(), grey if row.shortage else "")
        job = self._jobs.get(row.what)
        under = self._job(job) if job is not None else ()
        if not under and row.begun:
            under = (self._below(f"begun: {row.begun} are there", "$accent"),)
        elif not under:
            about = " · ".join(filter(None, (row.shortage or row.terms, row.good_at)))
            under = (self._below(about, grey if row.shortage else "$foreground 70%"),) if about else ()
        return Content.assemble(("↓ ", grey if row.shortage else "$accent"), title, *under)

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
        text = fit(describe(progress), self._width - _BAR - 3).rstrip()
        return (("\n  ", ""), *((part, colours[style]) for part, style in cells), (f" {text}", ""))

    def _below(self, text: str, style: str) -> tuple[str, str]:
        return f"\n  {fit(clean(text), self._width - 2).rstrip()}", style
