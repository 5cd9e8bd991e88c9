"""The live panel: what every tab and the engine are doing, at most ten times a second."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.chat.events import TabState
from app.settings.words import size_text, wait_text
from app.widgets.lines import LineWidget, Row, Span, bar, fit, pair, row_width
from app.widgets.sparkline import sparkline
from app.widgets.tab_bar import TabItem, glyph
from engine import EngineStats, Priority, SequenceState, SequenceStats

_WORDS = {
    TabState.IDLE: "idle",
    TabState.LOADING: "loading",
    TabState.QUEUED: "waiting",
    TabState.READING: "reading",
    TabState.GENERATING: "writing",
    TabState.PAUSED: "paused",
    TabState.ERROR: "failed",
}
_INDENT = "   "
_RANKS: dict[Priority, Row] = {
    Priority.LOW: (("low  ", "dim"),),
    Priority.NORMAL: (),
    Priority.HIGH: (("high  ", "accent"),),
}


@dataclass(frozen=True, slots=True)
class PanelTab:
    """One tab's block: its glyph and title, its sequence while one runs, its speeds, newest last."""

    item: TabItem
    active: bool
    sequence: SequenceStats | None = None
    speeds: tuple[float, ...] = ()
    context: tuple[int, int] | None = None
    priority: Priority = Priority.NORMAL


def made_to_wait(sequence: SequenceStats) -> bool:
    """Whether the engine paused a sequence, not the reader; its note says why."""
    return sequence.state is SequenceState.PAUSED and not sequence.user_paused


def line_text(sequence: SequenceStats) -> str:
    """Write when it is a sequence's turn: `2 in line, about 4 s`; `waiting` where that is not known."""
    if not sequence.queue_position:
        return _WORDS[TabState.QUEUED]
    wait = wait_text(sequence.wait_s)
    return f"{sequence.queue_position} in line{', ' if wait else ''}{wait}"


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
    """Lay the panel out: a line for every tab, all of a tab where there is room, the active one first.

    Tabs without a line are counted; they are idle ones if possible.
    """
    totals = total_rows(stats, width)
    blocks = {tab.item.id: tab_rows(tab, width, frame) for tab in tabs}
    room = max(0, height - len(totals) - 2)
    order = sorted(tabs, key=lambda tab: (not tab.active, tab.sequence is None))
    shown = order if len(order) <= room else order[: max(0, room - 1)]
    left = len(tabs) - len(shown)
    room -= len(shown) + bool(left)
    sizes = dict.fromkeys((tab.item.id for tab in shown), 1)
    for name in sizes:
        more = len(blocks[name]) - 1
        if more <= room:
            sizes[name] += more
            room -= more
    rows: list[Row] = [((" Chats", "dim"),)]
    for tab in tabs:
        rows.extend(blocks[tab.item.id][: sizes.get(tab.item.id, 0)])
    if left:
        rows.append(((f"{_INDENT}{left} more", "dim"),))
    rows.extend([()] * (height - len(rows) - len(totals)))
    return rows + totals


def tab_rows(tab: PanelTab, width: int, frame: int) -> list[Row]:
    """Lay out one tab: one line while it is idle, a few while it works."""
    sequence = tab.sequence
    rows: list[Row] = [_head_row(tab, width, frame)]
    if sequence is None:
        if tab.context is not None and tab.active and tab.context[0]:
            rows.append(_context_row(*tab.context, width))
            rows.append(())
        return rows
    if activity := _activity_spans(tab, sequence, width - len(_INDENT) - 1):
        rows.append(((_INDENT, ""), *activity))
    most = tab.context[1] if tab.context is not None else sequence.context_length
    rows.append(_context_row(sequence.context_tokens, most, width))
    rows.append(_blocks_row(sequence))
    if sequence.blocks_host:
        rows.append(_labelled("host", f"{sequence.blocks_host:,}", " blocks in host memory"))
    if sequence.drafted:
        share = f"{sequence.accepted / sequence.drafted:.0%}"
        noun = "guess" if sequence.drafted == 1 else "guesses"
        rows.append(_labelled("ahead", share, f" of {sequence.drafted:,} {noun} right"))
    rows.append(())
    return rows


def _head_row(tab: PanelTab, width: int, frame: int) -> Row:
    """Focus mark, glyph, title; priority and state at the right."""
    mark, style = glyph(tab.item, frame)
    right: Row = (*_RANKS[tab.priority], *_state_spans(tab), (" ", ""))
    title = fit(tab.item.title, width - len(_INDENT) - row_width(right) - 1)
    focused = tab.sequence is not None and tab.sequence.focused
    front: Span = ("▸", "accent") if focused else (" ", "")
    return pair((front, (f"{mark} ", style), (title, "strong" if tab.active else "text")), right, width)


def _activity_spans(tab: PanelTab, sequence: SequenceStats, width: int) -> Row:
    """What the state's own row shows: progress, speed, or why it waits."""
    state = tab.item.state
    if state is TabState.READING:
        wait = wait_text(sequence.wait_s)
        wait = f" {wait}" if wait else ""
        return (*bar(width - len(wait), [(tab.item.fraction, "reading")]), (wait, "dim"))
    if state is TabState.GENERATING:
        return ((sparkline(tab.speeds, width), "spark"),)
    reason = "you paused it" if state is TabState.PAUSED else sequence.note
    return ((fit(reason, width), "dim"),) if reason else ()


def total_rows(stats: EngineStats | None, width: int) -> list[Row]:
    """Lay out the engine's totals."""
    rule: Row = (("─" * width, "faint"),)
    if stats is None:
        return [rule, ((" The engine is starting…", "dim"),)]
    host: list[Row] = _window_rows(stats)
    if stats.kv_bytes_host:
        host.append(((f" and {size_text(stats.kv_bytes_host)} in host memory", "dim"),))
    total = max(1, stats.kv_bytes_total)
    used, cached = stats.kv_bytes_used / total, stats.kv_bytes_cached / total
    free = max(0, stats.kv_bytes_total - stats.kv_bytes_used - stats.kv_bytes_cached)
    left = f"{size_text(free)} free of {size_text(stats.kv_bytes_total)} "
    head = pair(((" Context memory", "dim"),), ((left, "dim"),), width)
    legend: Row = (
        (" ■", "used"),
        (f" used {size_text(stats.kv_bytes_used)}  ", "dim"),
        ("■", "cached"),
        (f" kept {size_text(stats.kv_bytes_cached)} ", "dim"),
    )
    return [
        rule,
        head,
        ((" ", ""), *bar(width - 2, [(used, "used"), (cached, "cached")])),
        pair(legend, ((f"{stats.kv_dtype} ", "faint"),), width),
        *_kv_rows(stats, width),
        *host,
        (),
        _numbers(("rows", f"{stats.rows}"), ("tick", _tick_text(stats)), width),
        _numbers(
            ("writing", f"{stats.decode_tok_s:.0f}/s"), ("reading", f"{stats.prefill_tok_s:.0f}/s"), width
        ),
        _numbers(("queue", f"{stats.queue_length}"), ("memory", size_text(stats.process_bytes)), width),
        (),
        ((" " + fit(f"{stats.device} · {stats.kernels}", width - 1), "faint"),),
    ]


def _kv_rows(stats: EngineStats, width: int) -> list[Row]:
    """Why models' KV is narrower than it could be; its type stands above too, where the line is short."""
    narrow = {model.kv_note: f"KV {model.kv_dtype}: {model.kv_note}" for model in stats.models}
    rows = [whole if len(whole) < width else note for note, whole in narrow.items() if note]
    return [((" " + fit(row, width - 1), "dim"),) for row in rows]


def _window_rows(stats: EngineStats) -> list[Row]:
    """What layers that see the newest tokens alone hold of the memory in use."""
    groups = [group for model in stats.models for group in model.kv_groups if group.window]
    return [
        ((f" {size_text(group.bytes_used)} of it for the last {group.window:,} tokens", "dim"),)
        for group in groups
        if group.bytes_used
    ]


def _state_spans(tab: PanelTab) -> Row:
    item, sequence = tab.item, tab.sequence
    if item.state is TabState.GENERATING and sequence is not None:
        return ((f"{sequence.tok_s:.1f}", "streaming"), (" tok/s", "dim"))
    if item.state is TabState.READING:
        return ((f"reading {item.fraction:.0%}", "reading"),)
    if item.state is TabState.QUEUED and sequence is not None:
        return ((line_text(sequence), "queued"),)
    if item.state is TabState.LOADING:
        return ((f"loading {item.fraction:.0%}", "reading"),)
    if item.unread:
        return (("new answer", "unread"),)
    styles = {TabState.ERROR: "error", TabState.PAUSED: "queued"}
    return ((_WORDS[item.state], styles.get(item.state, "faint")),)


def _context_row(used: int, most: int, width: int) -> Row:
    numbers = f"{used:,} / {most:,}"
    room = width - len(_INDENT) - len("context ") - len(numbers) - 2
    style = "warning" if most and used / most >= 0.8 else "used"
    meter = bar(max(1, room), [(used / max(1, most), style)])
    spans: list[Span] = [(_INDENT, ""), ("context ", "dim"), *meter, (f" {numbers} ", "dim")]
    return tuple(spans)


def _labelled(label: str, value: str, words: str) -> Row:
    return ((_INDENT, ""), (f"{label:<8}", "dim"), (value, "text"), (words, "dim"))


def _tick_text(stats: EngineStats) -> str:
    """Write how long a tick takes, and the most that is planned while somebody is waiting for it."""
    limit = f"/{stats.tick_limit_ms:.0f}" if stats.tick_limit_ms else ""
    text = f"{stats.tick_ms:.0f}{limit}"
    return f"{text} ms" if len(text) < 7 else text


def _blocks_row(sequence: SequenceStats) -> Row:
    left = _labelled("blocks", f"{sequence.blocks_own:,}", " own")
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
