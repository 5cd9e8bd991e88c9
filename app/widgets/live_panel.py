"""The live panel: what every tab and the engine are doing, at most ten times a second."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from app.chat.events import TabState
from app.settings.words import device_text, size_text, tokens_text, wait_text
from app.widgets.lines import LineWidget, Row, Span, bar, fit, pair, row_width
from app.widgets.sentence import BETWEEN, engine_parts, free_bytes
from app.widgets.sparkline import sparkline
from app.widgets.states import LOOKS
from app.widgets.tab_bar import TabItem, glyph
from engine import EngineStats, Priority, SequenceState, SequenceStats

_INDENT = "   "
_WIDE = 36
"""Columns from which lines are written out."""
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


def line_text(sequence: SequenceStats, *, short: bool = False) -> str:
    """Write when it is a sequence's turn: `2 in line, about 4 s`; `waiting` where that is not known.

    short: the place alone.
    """
    if not sequence.queue_position:
        return LOOKS[TabState.QUEUED].word
    wait = "" if short else wait_text(sequence.wait_s)
    return f"{sequence.queue_position} in line{', ' if wait else ''}{wait}"


class LivePanel(LineWidget):
    """Draws `panel_rows`."""

    def __init__(self, more_key: str = "", *, id: str | None = None) -> None:
        """more_key: shows more of the engine, as people write it."""
        super().__init__(id=id)
        self._more_key = more_key
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
            self.set_rows(panel_rows(tabs, stats, self.size.width, self.size.height, frame, self._more_key))


def panel_rows(
    tabs: Sequence[PanelTab],
    stats: EngineStats | None,
    width: int,
    height: int,
    frame: int = 0,
    more_key: str = "",
) -> list[Row]:
    """Lay the panel out: a line for every tab, all of a tab where there is room, the active one first.

    Tabs without a line are counted; they are idle ones if possible.
    """
    totals = total_rows(stats, width, more_key)
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
    activity = _activity_rows(tab, sequence, width - len(_INDENT) - 1)
    rows += [((_INDENT, ""), *row) for row in activity]
    most = tab.context[1] if tab.context is not None else sequence.context_length
    rows.append(_context_row(sequence.context_tokens, most, width))
    rows.append(_blocks_row(sequence, width))
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
    right: Row = (*_RANKS[tab.priority], *_state_spans(tab, width), (" ", ""))
    title = fit(tab.item.title, width - len(_INDENT) - row_width(right) - 1)
    focused = tab.sequence is not None and tab.sequence.focused
    front: Span = ("▸", "accent") if focused else (" ", "")
    return pair((front, (f"{mark} ", style), (title, "strong" if tab.active else "text")), right, width)


def _activity_rows(tab: PanelTab, sequence: SequenceStats, width: int) -> list[Row]:
    """What the state's own rows show: progress, speed, or why it waits."""
    state = tab.item.state
    if state is TabState.READING:
        wait = wait_text(sequence.wait_s)
        wait = f" {wait}" if wait else ""
        return [(*bar(width - len(wait), [(tab.item.fraction, "reading")]), (wait, "dim"))]
    if state is TabState.GENERATING:
        return [((sparkline(tab.speeds, width), "spark"),)]
    reason = "you paused it" if state is TabState.PAUSED else sequence.note
    return [((fit(line, width), "dim"),) for line in wrap(reason, max(1, width))]


def total_rows(stats: EngineStats | None, width: int, more_key: str = "") -> list[Row]:
    """Say what the engine does and how full its memory is; `more_key` shows all figures."""
    rule: Row = (("─" * width, "faint"),)
    if stats is None:
        return [rule, ((" The engine is starting…", "dim"),)]
    total = max(1, stats.kv_bytes_total)
    used, cached = stats.kv_bytes_used / total, stats.kv_bytes_cached / total
    rows: list[Row] = [rule, *(((f" {line}", "text"),) for line in _wrapped(engine_parts(stats), width - 2))]
    rows.append(((" ", ""), *bar(width - 2, [(used, "used"), (cached, "cached")])))
    if stats.kv_bytes_host:
        rows.append(((f" and {size_text(stats.kv_bytes_host)} in host memory", "dim"),))
    rows += [*_device_rows(stats, width), *_kv_rows(stats, width), *_window_rows(stats)]
    rows += _disk_rows(stats, width)
    rows += _slower_rows(stats, width)
    if more_key:
        rows.append(((f" {more_key} ", "accent"), ("shows more", "dim")))
    return rows


def _device_rows(stats: EngineStats, width: int) -> list[Row]:
    """What each of several devices does and has free."""
    rows: list[Row] = []
    for part in stats.parts:
        speed = f"{part.decode_tok_s:.0f} tok/s{BETWEEN}" if part.decode_tok_s else ""
        right = f"{speed}{size_text(free_bytes(part))} free "
        figures = ("lost until a restart ", "warning") if part.failure else (right, "dim")
        rows.append(pair(((f" {device_text(part.device)}", "text"),), (figures,), width))
    return rows


def _slower_rows(stats: EngineStats, width: int) -> list[Row]:
    """What torch computes in place of a device's kernels, what that takes, and why."""
    lines = [line for text in stats.slower for line in wrap(text, max(1, width - 1), subsequent_indent=" ")]
    return [((f" {line}", "warning"),) for line in lines]


def _disk_rows(stats: EngineStats, width: int) -> list[Row]:
    """What files hold of contexts, how much of it was of use, and why some was not."""
    disk = stats.kv_disk
    if disk is None:
        return []
    rows: list[Row] = []
    if disk.bytes_used:
        back = f", {disk.tokens_restored:,} tokens back" if disk.tokens_restored else ""
        rows.append(((f" and {size_text(disk.bytes_used)} on disk{back}", "dim"),))
    if disk.note:
        rows.append(((" " + fit(disk.note, width - 1), "warning"),))
    return rows


def _kv_rows(stats: EngineStats, width: int) -> list[Row]:
    """Why models' KV is narrower than it could be, and what the processor computes of them."""
    notes = dict.fromkeys(f"{model.kv_dtype}: {model.kv_note}" for model in stats.models if model.kv_note)
    rows = [f"KV {note}" if len(note) + 4 <= width else note for note in notes]
    rows += dict.fromkeys(model.placement for model in stats.models if model.placement)
    return [((" " + fit(row, width - 1), "dim"),) for row in rows]


def _window_rows(stats: EngineStats) -> list[Row]:
    """What layers that see the newest tokens alone hold of the memory in use."""
    groups = [group for model in stats.models for group in model.kv_groups if group.window]
    return [
        ((f" {size_text(group.bytes_used)} of it for the last {group.window:,} tokens", "dim"),)
        for group in groups
        if group.bytes_used
    ]


def _wrapped(parts: Sequence[str], width: int) -> list[str]:
    """Join the parts of a sentence, in as many lines as they need."""
    lines = [parts[0]]
    for part in parts[1:]:
        longer = f"{lines[-1]}{BETWEEN}{part}"
        if len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(part)
    return lines


def _state_spans(tab: PanelTab, width: int) -> Row:
    item, sequence = tab.item, tab.sequence
    if item.state is TabState.GENERATING and sequence is not None:
        return ((f"{sequence.tok_s:.1f}", "streaming"), (" tok/s", "dim"))
    if item.state is TabState.READING:
        return ((f"reading {item.fraction:.0%}", "reading"),)
    if item.state is TabState.QUEUED and sequence is not None:
        return ((line_text(sequence, short=width < _WIDE), "queued"),)
    if item.state is TabState.LOADING:
        return ((f"loading {item.fraction:.0%}", "reading"),)
    if item.unread:
        return (("new answer", "unread"),)
    look = LOOKS[item.state]
    return ((look.word, look.style),)


def _context_row(used: int, most: int, width: int) -> Row:
    numbers = f"{used:,} / {most:,}" if width >= _WIDE else f"{tokens_text(used)} / {tokens_text(most)}"
    room = width - len(_INDENT) - len("context ") - len(numbers) - 2
    style = "warning" if most and used / most >= 0.8 else "used"
    meter = bar(max(1, room), [(used / max(1, most), style)])
    spans: list[Span] = [(_INDENT, ""), ("context ", "dim"), *meter, (f" {numbers} ", "dim")]
    return tuple(spans)


def _labelled(label: str, value: str, words: str) -> Row:
    return ((_INDENT, ""), (f"{label:<8}" if label else "", "dim"), (value, "text"), (words, "dim"))


def _blocks_row(sequence: SequenceStats, width: int) -> Row:
    label = "blocks" if width >= _WIDE else ""
    left = _labelled(label, f"{sequence.blocks_own:,}", " own")
    if not sequence.blocks_shared:
        return left
    return (*left, (" + ", "dim"), (f"{sequence.blocks_shared:,}", "shared"), (" shared", "dim"))
