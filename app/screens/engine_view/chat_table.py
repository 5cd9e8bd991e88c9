"""A line for each chat: what it does, how fast, and what its answer has cost. No widget."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.chat.conversation import AnswerStats
from app.settings.chat_colors import COUNT, NAMES
from app.settings.words import duration_text
from app.widgets.lines import Row, Span, fit
from app.widgets.states import LOOKS
from app.widgets.tab_bar import TabItem
from engine import SequenceDetail, SequenceStats

_LEAST_TITLE, _MOST_TITLE = 18, 40
_STATE = 8


@dataclass(frozen=True, slots=True)
class ChatRow:
    """One chat: its running answer's figures, or those of its last one."""

    item: TabItem
    place: int
    """Which chat it is, from 0; decides about its colour."""
    active: bool = False
    stats: SequenceStats | None = None
    detail: SequenceDetail | None = None
    last: AnswerStats | None = None


@dataclass(frozen=True, slots=True)
class _Column:
    head: str
    width: int


_COLUMNS = (
    _Column("tok/s", 7),
    _Column("first", 8),
    _Column("tokens", 8),
    _Column("cached", 8),
    _Column("queue", 8),
    _Column("saved", 8),
    _Column("blocks", 8),
    _Column("shared", 7),
    _Column("host", 6),
    _Column("gave way", 9),
    _Column("guesses", 9),
)
"""In the order in which a wider table gets them."""


def table_rows(chats: Sequence[ChatRow], width: int, height: int) -> list[Row]:
    """Lay out a heading and a line for each chat; those that work first where there is little room."""
    title, columns = _fitting(width)
    head = f"   {fit('Chat', title)} {'state':<{_STATE}}" + "".join(f"{c.head:>{c.width}}" for c in columns)
    rows: list[Row] = [((fit(head, width), "dim"),)]
    room = height - 1
    order = sorted(chats, key=lambda chat: (not chat.active, chat.stats is None))
    shown = set(map(id, order if len(order) <= room else order[: max(0, room - 1)]))
    rows += [_chat_row(chat, title, columns) for chat in chats if id(chat) in shown]
    if left := len(chats) - len(shown):
        rows.append(((f"   and {left} more", "dim"),))
    return rows[:height]


def _fitting(width: int) -> tuple[int, list[_Column]]:
    """Return how wide titles are, and the columns for which there is room."""
    columns: list[_Column] = []
    room = width - 3 - _LEAST_TITLE - 1 - _STATE - 1
    for column in _COLUMNS:
        if column.width > room:
            break
        columns.append(column)
        room -= column.width
    return min(_MOST_TITLE, _LEAST_TITLE + max(0, room)), columns


def _chat_row(chat: ChatRow, title: int, columns: Sequence[_Column]) -> Row:
    look = LOOKS[chat.item.state]
    cells = _cells(chat)
    spans: list[Span] = [
        ("■", NAMES[chat.place % COUNT]),
        (f"{look.glyph} ", look.style),
        (fit(chat.item.title, title), "strong" if chat.active else "text"),
        (f" {look.word:<{_STATE}}", look.style),
    ]
    for column in columns:
        value = cells[column.head]
        spans.append((f"{value or '–':>{column.width}}", "text" if value else "faint"))
    return tuple(spans)


def _cells(chat: ChatRow) -> dict[str, str]:
    """Every figure that is known, by the head of its column."""
    cells = dict.fromkeys((column.head for column in _COLUMNS), "")
    if chat.stats is not None:
        cells |= _running(chat.stats, chat.detail)
    elif chat.last is not None:
        last = chat.last
        cells |= {
            "tok/s": f"{last.tok_s:.1f}" if last.tok_s else "",
            "first": _time(last.ttft_ms),
            "tokens": f"{last.prompt_tokens + last.tokens:,}",
            "cached": f"{last.cached_tokens:,}",
            "saved": _time(last.saved_ms or None),
        }
    return cells


def _running(stats: SequenceStats, detail: SequenceDetail | None) -> dict[str, str]:
    cells = {
        "tok/s": f"{stats.tok_s:.1f}" if stats.tok_s else "",
        "tokens": f"{stats.context_tokens:,}",
        "blocks": f"{stats.blocks_own + stats.blocks_shared:,}",
        "shared": f"{stats.blocks_shared:,}",
        "host": f"{stats.blocks_host:,}" if stats.blocks_host else "",
        "guesses": f"{stats.accepted / stats.drafted:.0%} ok" if stats.drafted else "",
        "queue": f"{stats.queue_position}." if stats.queue_position else "",
    }
    if detail is not None:
        cells |= {
            "first": _time(detail.ttft_ms),
            "queue": cells["queue"] or _time(detail.queue_ms),
            "cached": f"{detail.cached_tokens:,}",
            "saved": _time(detail.saved_ms or None),
            "gave way": f"{detail.preemptions}x" if detail.preemptions else "",
        }
    return cells


def _time(milliseconds: float | None) -> str:
    return duration_text(milliseconds) if milliseconds is not None else ""
