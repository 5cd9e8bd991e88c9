"""The live panel: what every tab and the engine are doing, at most ten times a second."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.session_events import TabState
from app.widgets.lines import LineWidget, Row, Span, bar, fit, pair, size_text
from app.widgets.sparkline import sparkline
from app.widgets.tab_bar import TabItem, glyph
from engine.stats import EngineStats, SequenceStats

_WORDS = {
    TabState.IDLE: "idle",
    TabState.LOADING: "loading",
    TabState.QUEUED: "waiting",
    TabState.READING: "reading",
    TabState.GENERATING: "writing",
    TabState.ERROR: "failed",
}
_INDENT = "   "


@dataclass(frozen=True, slots=True)
class PanelTab:
    """One tab's block: its glyph and title, its sequence while one runs, its speeds, newest last."""

    item: TabItem
    active: bool
    sequence: SequenceStats | None = None
    speeds: tuple[float, ...] = ()
    context: tuple[int, int] | None = None


class LivePanel(LineWidget):
    """Draws `panel_rows`."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._shown: tuple[Sequence[PanelTab], EngineStats | None, int] = ((), None, 0)

    def show(self, tabs: Sequence[PanelTab], stats: EngineStats | None, frame: int = 0) -> None:
        """Draw these tabs and totals."""
        self._shown = (tabs, stats, frame)
        self._draw()

    def on_resize(self) -> None:
        """Lay the panel out for the new size."""
        self._draw()

    def _draw(self) -> None:
        if self.size.width:
            tabs, stats, frame = self._shown
            self.set_rows(panel_rows(tabs, stats, self.size.width, self.size.height, frame))


def panel_rows(
    tabs: Sequence[PanelTab], stats: EngineStats | None, width: int, height: int, frame: int = 0
) -> list[Row]:
    """Lay the panel out; tabs that do not fit are counted, busy ones and the active one come first."""
    totals = total_rows(stats, width)
    room = height - len(totals) - 2
    rows: list[Row] = [((" Chats", "dim"),)]
    order = sorted(tabs, key=lambda tab: (not tab.active, tab.sequence is None))
    chosen: set[str] = set()
    for tab in order:
        size = len(tab_rows(tab, width, frame))
        if room - size < (1 if len(chosen) + 1 < len(tabs) else 0):
            break
        chosen.add(tab.item.id)
        room -= size
    for tab in tabs:
        if tab.item.id in chosen:
            rows.extend(tab_rows(tab, width, frame))
    if len(chosen) < len(tabs):
        rows.append(((f"{_INDENT}{len(tabs) - len(chosen)} more", "dim"),))
    rows.extend([()] * (height - len(rows) - len(totals)))
    return rows + totals


def tab_rows(tab: PanelTab, width: int, frame: int) -> list[Row]:
    """Lay out one tab: one line while it is idle, up to four while it works."""
    mark, style = glyph(tab.item, frame)
    right = _state_spans(tab)
    room = width - len(_INDENT) - sum(len(text) for text, _ in right) - 2
    title = fit(tab.item.title, room)
    name = "strong" if tab.active else "text"
    rows: list[Row] = [pair(((f" {mark} ", style), (title, name)), (*right, (" ", "")), width)]
    sequence = tab.sequence
    if sequence is None:
        if tab.context is not None and tab.active and tab.context[0]:
            rows.append(_context_row(*tab.context, width))
            rows.append(())
        return rows
    inner = width - len(_INDENT) - 1
    if tab.item.state is TabState.READING:
        rows.append(((_INDENT, ""), *bar(inner, [(tab.item.fraction, "reading")])))
    elif tab.item.state is TabState.GENERATING:
        rows.append(((_INDENT, ""), (sparkline(tab.speeds, inner), "spark")))
    elif sequence.note:
        rows.append(((_INDENT, ""), (fit(sequence.note, inner), "dim")))
    rows.append(_context_row(sequence.context_tokens, sequence.context_length, width))
    rows.append(_blocks_row(sequence))
    rows.append(())
    return rows


def total_rows(stats: EngineStats | None, width: int) -> list[Row]:
    """Lay out the engine's totals."""
    rule: Row = (("─" * width, "faint"),)
    if stats is None:
        return [rule, ((" The engine is starting…", "dim"),)]
    total = max(1, stats.kv_bytes_total)
    used, cached = stats.kv_bytes_used / total, stats.kv_bytes_cached / total
    free = max(0, stats.kv_bytes_total - stats.kv_bytes_used - stats.kv_bytes_cached)
    head = pair(((" Context memory", "dim"),), ((f"{size_text(stats.kv_bytes_total)} ", "dim"),), width)
    legend: Row = (
        (" ■", "used"),
        (f" used {size_text(stats.kv_bytes_used)}  ", "dim"),
        ("■", "cached"),
        (f" kept {size_text(stats.kv_bytes_cached)}  ", "dim"),
        ("■", "faint"),
        (f" {size_text(free)}", "dim"),
    )
    return [
        rule,
        head,
        ((" ", ""), *bar(width - 2, [(used, "used"), (cached, "cached")])),
        legend,
        (),
        _numbers(("rows", f"{stats.rows}"), ("tick", f"{stats.tick_ms:.0f} ms"), width),
        _numbers(
            ("writing", f"{stats.decode_tok_s:.0f}/s"), ("reading", f"{stats.prefill_tok_s:.0f}/s"), width
        ),
        _numbers(("queue", f"{stats.queue_length}"), ("memory", size_text(stats.process_bytes)), width),
        (),
        ((" " + fit(f"{stats.device} · {stats.kernels} · kv {stats.kv_dtype}", width - 2), "faint"),),
    ]


def _state_spans(tab: PanelTab) -> Row:
    item, sequence = tab.item, tab.sequence
    if item.state is TabState.GENERATING and sequence is not None:
        return ((f"{sequence.tok_s:.1f}", "streaming"), (" tok/s", "dim"))
    if item.state is TabState.READING:
        return ((f"reading {item.fraction:.0%}", "reading"),)
    if item.state is TabState.QUEUED and sequence is not None and sequence.queue_position:
        return ((f"waiting, {sequence.queue_position} in line", "queued"),)
    if item.state is TabState.LOADING:
        return ((f"loading {item.fraction:.0%}", "reading"),)
    if item.unread:
        return (("new answer", "unread"),)
    return ((_WORDS[item.state], "error" if item.state is TabState.ERROR else "faint"),)


def _context_row(used: int, most: int, width: int) -> Row:
    numbers = f"{used:,} / {most:,}"
    room = width - len(_INDENT) - len("context ") - len(numbers) - 2
    style = "warning" if most and used / most >= 0.8 else "used"
    meter = bar(max(1, room), [(used / max(1, most), style)])
    spans: list[Span] = [(_INDENT, ""), ("context ", "dim"), *meter, (f" {numbers} ", "dim")]
    return tuple(spans)


def _blocks_row(sequence: SequenceStats) -> Row:
    left: Row = ((_INDENT, ""), ("blocks  ", "dim"), (f"{sequence.blocks_own:,}", "text"), (" own", "dim"))
    if not sequence.blocks_shared:
        return left
    return (*left, (" + ", "dim"), (f"{sequence.blocks_shared:,}", "shared"), (" shared", "dim"))


def _numbers(first: tuple[str, str], second: tuple[str, str], width: int) -> Row:
    half = (width - 2) // 2
    spans: list[Span] = [(" ", "")]
    for name, value in (first, second):
        spans.append((f"{name:<8}", "dim"))
        spans.append((fit(value, half - 10, right=True), "text"))
        spans.append(("  ", ""))
    return tuple(spans)
