"""Choosing a model file: everything found in the model folders, or a path that is typed or pasted."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.fuzzy import Matcher
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from app.models.builtin import BUILTIN_TITLE, is_builtin
from app.models.found import ModelSearch
from app.models.listing import ModelFile, read_model
from app.screens.dialogs.list_keys import move_in
from app.settings.words import size_text
from app.widgets.lines import fit
from app.widgets.pick_list import PickList
from app.widgets.words import words

Finder = Callable[[ModelSearch], list[ModelFile]]


@dataclass(frozen=True, slots=True)
class _Column:
    width: int
    right: bool = False


_COLUMNS = (_Column(9, True), _Column(9), _Column(9, True))


class ModelPicker(ModalScreen[Path | None]):
    """Returns the path of the chosen file."""

    CSS_PATH: ClassVar = ["dialog.tcss", "model_picker.tcss"]
    BINDINGS: ClassVar = [("escape", "dismiss(None)", "Cancel")]

    def __init__(self, search: ModelSearch, current: Path | None, finder: Finder) -> None:
        super().__init__()
        self._search = search
        self._current = current
        self._finder = finder
        self._found: list[ModelFile] = []
        self._shown: list[ModelFile] = []

    def compose(self) -> ComposeResult:
        """A line to filter with, the list, and where the files come from."""
        with Vertical(classes="dialog"):
            yield Static("Open a model in this chat", classes="heading")
            yield Input(placeholder="Filter, or paste the path of a .gguf file", compact=True)
            yield Static("", id="columns")
            yield PickList(id="models", markup=False, compact=True)
            yield Static("Looking for models…", id="foot", classes="foot")

    def on_mount(self) -> None:
        """Look for files off the UI's thread."""
        self.run_worker(self._scan(), exclusive=True, group="scan")

    def on_resize(self) -> None:
        """Lay the rows out for the new width."""
        self._fill()

    async def _scan(self) -> None:
        self._found = await asyncio.to_thread(self._finder, self._search)
        self._fill()
        home = str(Path.home())
        places = ", ".join(str(folder).replace(home, "~", 1) for folder in self._search.folders)
        self.query_one("#foot", Static).update(words(f"Enter opens · Esc leaves · looked in {places}"))

    @on(Input.Changed)
    async def _on_filter(self, event: Input.Changed) -> None:
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
        if not query:
            self._show(self._found)
            return
        matcher = Matcher(query)
        scored = [(matcher.match(f"{model.title} {model.quantization}"), model) for model in self._found]
        scored.sort(key=lambda pair: -pair[0])
        self._show([model for score, model in scored if score > 0])

    def _show(self, models: list[ModelFile]) -> None:
        self._shown = models
        options = self.query_one(OptionList)
        width = max(40, options.size.width - 3)
        name_width = width - sum(column.width + 2 for column in _COLUMNS) - 2
        header = (
            "  "
            + fit("Name", name_width)
            + "".join(
                "  " + fit(name, column.width, right=column.right)
                for name, column in zip(("Size", "Type", "Context"), _COLUMNS, strict=True)
            )
        )
        self.query_one("#columns", Static).update(words(header))
        options.clear_options()
        options.add_options([Option(self._row(model, name_width, width)) for model in models])
        if models:
            at = next((i for i, model in enumerate(models) if model.path == self._current), 0)
            options.highlighted = at

    def _row(self, model: ModelFile, name_width: int, width: int) -> Content:
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
            (fit(title, name_width), "bold" if usable else "$foreground 50%"),
        ]
        for text, column in zip(cells, _COLUMNS, strict=True):
            parts.append(("  " + fit(text, column.width, right=column.right), "$foreground 70%"))
        if model.problem is not None:
            parts.append((f"\n  {fit(model.problem, width - 2).rstrip()}", "$error"))
        elif model.caution is not None:
            parts.append((f"\n  {fit(model.caution, width - 2).rstrip()}", "$warning"))
        return Content.assemble(*parts)

    def on_key(self, event: events.Key) -> None:
        """Move in the list while the filter keeps the focus."""
        move_in(self.query_one(OptionList), event)

    @on(Input.Submitted)
    def _on_submitted(self) -> None:
        self._choose(self.query_one(OptionList).highlighted)

    @on(OptionList.OptionSelected)
    def _on_selected(self, event: OptionList.OptionSelected) -> None:
        self._choose(event.option_index)

    def _choose(self, index: int | None) -> None:
        if index is None or index >= len(self._shown):
            return
        model = self._shown[index]
        if model.problem is not None:
            self.query_one("#foot", Static).update(words(model.problem))
            self.app.bell()
            return
        self.dismiss(model.path)


def _as_path(text: str) -> Path | None:
    """Read a typed or pasted path; quotes around it and a leading ~ are understood."""
    text = text.strip().strip("'\"").removeprefix("file://")
    if not text or not (text.startswith(("/", "~", "./", "../")) or text.endswith(".gguf")):
        return None
    return Path(text).expanduser().absolute()
