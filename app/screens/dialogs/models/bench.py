"""How fast the model of a chat runs: measured while one looks, beside what the other chats do."""

import asyncio
from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from app.bench.report import render_short
from app.bench.short import Ended, ShortBench, others_now
from app.widgets.lines import LineWidget, bar
from app.widgets.words import words
from engine import EngineError

_PERIOD = 0.2
_MEASURING = "Esc ends it · other chats go on meanwhile"
_DONE = "C copies · Enter measures again · Esc leaves"
_FAILED = "Enter measures again · Esc leaves"


class BenchScreen(ModalScreen[None]):
    """Measures as long as it is open; `make` returns a measurement that has not begun."""

    CSS_PATH: ClassVar = ["../dialog.tcss", "bench.tcss"]
    BINDINGS: ClassVar = [
        ("escape", "leave", "Leave"),
        ("enter", "again", "Measure again"),
        ("c,y", "copy", "Copy"),
    ]

    def __init__(self, title: str, make: Callable[[], ShortBench], copy: Callable[[str], None]) -> None:
        """title: of the model."""
        super().__init__()
        self._title, self._make, self._copy = title, make, copy
        self._bench: ShortBench | None = None
        """What is measured now."""
        self.figures = ""
        """What was measured, to be read."""

    def compose(self) -> ComposeResult:
        """What is measured and how far that is, or the figures; what else runs; the keys."""
        with Vertical(classes="dialog"):
            yield Static(words(f"How fast {self._title} runs here"), classes="heading")
            yield Static(id="doing")
            yield LineWidget(id="meter")
            yield Static(classes="foot")

    def on_mount(self) -> None:
        """Begin, and look at it now and then."""
        self.set_interval(_PERIOD, self.look)
        self.action_again()

    def on_unmount(self) -> None:
        """Measure no further, however it is left."""
        if self._bench is not None:
            self._bench.end()

    def action_again(self) -> None:
        """Measure, unless that is under way."""
        if self._bench is None:
            self._bench = self._make()
            self.run_worker(self._measure(self._bench), group="bench", exit_on_error=False)

    def action_leave(self) -> None:
        """Leave; what is being measured ends."""
        self.dismiss(None)

    def action_copy(self) -> None:
        """Copy the figures."""
        if self.figures:
            self._copy(self.figures)

    def look(self) -> None:
        """Show how far it is, and what else runs."""
        bench = self._bench
        if bench is None or not self.is_current:
            return
        others, share = others_now(bench.look()), bench.fraction
        self._show(f"{bench.doing.capitalize()}…\n{others}", _MEASURING)
        meter = self.query_one("#meter", LineWidget)
        meter.display = True
        meter.set_rows([tuple(bar(max(1, meter.size.width), [(share, "reading")]))])

    async def _measure(self, bench: ShortBench) -> None:
        self.figures = ""
        self.look()
        try:
            self.figures = render_short(await asyncio.to_thread(bench.run))
        except Ended:
            return
        except EngineError as error:
            self._end(f"It could not be measured: {error}.", _FAILED)
        else:
            low = self.has_class("-low")
            self._end(self.figures.replace("\n\n", "\n") if low else self.figures, _DONE)

    def _end(self, text: str, keys: str) -> None:
        self._bench = None
        self.query_one("#meter").display = False
        self._show(text, keys)

    def _show(self, text: str, keys: str) -> None:
        self.query_one("#doing", Static).update(words(text))
        self.query_one(".foot", Static).update(words(keys))
