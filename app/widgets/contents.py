"""From sessions and the engine's numbers to what tab bar, panel, status line and notices show."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from rich.cells import cell_len

from app.chat.context.limits import NEARLY_FULL
from app.chat.conversation import Role
from app.chat.events import TabState
from app.chat.session import ChatSession
from app.models.builtin import model_title
from app.widgets.lines import ELLIPSIS, Row, bar, fit
from app.widgets.live_panel import PanelTab, line_text, made_to_wait
from app.widgets.sparkline import SpeedHistory
from app.widgets.status_line import StatusItem
from app.widgets.tab_bar import TabItem
from engine import EngineStats

_BAR, _NAME = 20, 32
_MOST_LINES = 3


def assign_stats(sessions: Sequence[ChatSession], stats: EngineStats | None) -> None:
    """Give every session the numbers of its own running answer."""
    by_id = {sequence.sequence_id: sequence for sequence in stats.sequences} if stats else {}
    for session in sessions:
        number = session.sequence_id
        session.observe(by_id.get(number) if number is not None else None)


def tab_item(session: ChatSession) -> TabItem:
    """Return a tab as the bar shows it."""
    state = session.state
    fraction = session.models.progress[0] if state is TabState.LOADING else session.reading_fraction
    return TabItem(session.conversation.id, session.conversation.title, state, session.unread, fraction)


def panel_tab(session: ChatSession, active: bool, speeds: SpeedHistory | None) -> PanelTab:
    """Return a tab as the live panel shows it."""
    values = tuple(speeds.values) if speeds is not None else ()
    return PanelTab(
        tab_item(session),
        active,
        session.stats,
        values,
        context_use(session),
        session.conversation.priority,
    )


def context_use(session: ChatSession) -> tuple[int, int] | None:
    """Return (used, most) tokens of a tab's context, or None where that is not known."""
    if session.model is None:
        return None
    most = session.model.max_tokens
    if most is None:
        return None
    if session.stats is not None:
        return session.stats.context_tokens, most
    path = session.conversation.path()
    known = next((node.stats for node in reversed(path) if node.stats is not None), None)
    if known is not None and not known.prompt_tokens:
        # Its server did not count.
        return None
    if known is None:
        return None if path and not session.busy else (0, most)
    return max(0, known.prompt_tokens + known.tokens - session.freed_tokens), most


def nearly_full(session: ChatSession) -> float | None:
    """Return how full a context is of which the reader is to be warned."""
    used, most = context_use(session) or (0, 0)
    share = used / most if most else 0.0
    return share if share >= NEARLY_FULL and not session.warned else None


def _context_memory(session: ChatSession, stats: EngineStats | None) -> float | None:
    """Share of it that is held, of several devices on that of the chat's model."""
    if stats is not None and session.model is not None and session.model.local is not None:
        stats = stats.of_device(stats.device_of(session.model.local.path))
    return stats.kv_bytes_used / stats.kv_bytes_total if stats is not None and stats.kv_bytes_total else None


def status_item(session: ChatSession, stats: EngineStats | None) -> StatusItem:
    """Return what the status line shows of the active tab."""
    speed = session.stats.tok_s if session.stats is not None else 0.0
    if not speed and not session.busy:
        answer = session.conversation.last_answer()
        speed = answer.stats.tok_s if answer is not None and answer.stats is not None else 0.0
    kv = None if _elsewhere(session) else _context_memory(session, stats)
    if session.model is None:
        loading = session.models.loading_path
        name = model_title(loading) if loading is not None else ""
        if session.models.error is None:
            return StatusItem(name or "tui-chat", note="starting", kv=kv)
        return StatusItem("no model", note=f"{session.key('choose_model')} opens one", kv=kv)
    return StatusItem(
        model=model_title(session.model.path),
        quantization=session.model.kind,
        context=context_use(session),
        tok_s=speed,
        kv=kv,
        note=status_note(session),
    )


def status_note(session: ChatSession) -> str:
    """Return what the active tab does besides writing, in a few words."""
    stats = session.stats
    if session.state is TabState.PAUSED:
        return "paused"
    if session.state is TabState.READING and _elsewhere(session):
        return session.waits or "waiting"
    if session.state is TabState.READING:
        return f"reading {session.reading_fraction:.0%}"
    if session.state is TabState.QUEUED and stats is not None:
        return line_text(stats)
    return ""


def _elsewhere(session: ChatSession) -> bool:
    """Whether a chat's model runs at an endpoint."""
    return session.model is not None and session.model.local is None


def notice_rows(session: ChatSession, width: int, send_key: str) -> list[Row]:
    """Return the lines above the composer; `send_key` is the key that sends a message."""
    rows: list[Row] = []
    stop = session.key("stop")
    if session.paused:
        goes_on = f"{session.key('pause')} goes on, {stop} stops the answer here."
        rows.append((("Paused. ", "queued"), (goes_on, "dim")))
    elif session.stats is not None and made_to_wait(session.stats) and session.stats.note:
        note = session.stats.note[0].upper() + session.stats.note[1:]
        rows.append(((fit_short(f"{note}; this answer goes on by itself.", width), "queued"),))
    if session.models.loading_path is not None:
        rows.append(_loading_row(session, session.models.loading_path, width))
    elif session.models.error is not None and session.model is None:
        rows += _wrapped(session.models.error, width, "error")
    if session.writing.editing is not None:
        rows.append(_editing_row(session, session.writing.editing, f"{send_key} ", f", {stop} leaves it."))
    for warning in session.models.warnings:
        rows += _wrapped(warning, width, "warning")
    rows += _room_rows(session, width)
    if session.queued:
        first = fit_short(session.queued[0], max(10, width - 30))
        more = f" and {len(session.queued) - 1} more" if len(session.queued) > 1 else ""
        key = f"  {session.key('queue')}"
        rows.append((("Waits its turn: ", "queued"), (first, "dim"), (more, "dim"), (key, "accent")))
    return rows


def _editing_row(session: ChatSession, node_id: str, sends: str, leaves: str) -> Row:
    """Say which message is written differently, and what the keys do with it."""
    conversation = session.conversation
    if conversation.nodes[node_id].role is Role.ASSISTANT:
        what, does = "Editing an answer. ", "has it go on from here"
    else:
        last = conversation.last_user()
        which = "your last message" if last is not None and last.id == node_id else "an earlier message"
        what, does = f"Editing {which}. ", "asks again"
    return ((what, "accent"), (f"{sends}{does}{leaves}", "dim"))


def _room_rows(session: ChatSession, width: int) -> list[Row]:
    """Say that the context is full, or nearly so, and what can be done."""
    key, stop = session.key("make_room"), session.key("stop")
    if session.blocked is not None:
        keys = f"{key} makes some, {stop} gives it back. "
        waits = "Waits for room in the context: "
        first = fit_short(session.blocked.text or "the answer", max(1, width - len(waits) - len(keys)))
        return [((waits, "warning"), (keys, "dim"), (first, "dim"))]
    share = nearly_full(session)
    if share is None:
        return []
    keys = f"{key} trims or summarises it, {stop} hides this."
    return [((f"The context is {share:.0%} full. ", "warning"), (keys, "dim"))]


def standing_rows(standing: Sequence[str], notices: Sequence[str], width: int, hide_key: str) -> list[Row]:
    """Return what is wrong with the saving, and notices, which `hide_key` hides; long lines take rows."""
    hint = [f"{hide_key} hides this."] if notices else []
    styled = [*((line, "error") for line in standing), *((line, "warning") for line in notices)]
    styled += [(line, "dim") for line in hint]
    return [
        ((fit_short(part, width), style),)
        for line, style in styled
        for part in textwrap.wrap(line, max(20, width))
    ]


def start_row(warnings: Sequence[str], width: int, help_key: str) -> Row:
    """Return the line that says what was wrong at the start, and where all of it stands."""
    more = len(warnings) - 1
    tail = f" and {more} more; {help_key} lists them" if more else f" {help_key} says more"
    first = fit_short(warnings[0], max(1, width - len(tail)))
    return ((first, "warning"), (tail if more or first.endswith(ELLIPSIS) else "", "dim"))


def read_only_row(key: str) -> Row:
    """Return the line that says why nothing can be sent in a chat, and which key changes that."""
    return (("Open in another window, only read here. ", "warning"), (f"{key} takes it over", "dim"))


def _wrapped(text: str, width: int, style: str) -> list[Row]:
    """Wrap a text that stands nowhere else; what goes beyond a few lines is cut."""
    lines = textwrap.wrap(text, max(1, width), max_lines=_MOST_LINES, placeholder=ELLIPSIS)
    return [((fit_short(line, width), style),) for line in lines]


def _loading_row(session: ChatSession, path: Path, width: int) -> Row:
    """What is opened, how far, and what stopping does; the bar and the step make room for the names."""
    fraction, what = session.models.progress
    keeps = f"keeps {model_title(session.model.path)}" if session.model is not None else "stops"
    keeps = f"{session.key('stop')} {keeps}"
    opening = f"Opening {fit_short(model_title(path), _NAME)} "
    done = f" {fraction:4.0%} "
    room = width - sum(map(cell_len, (opening, done, keeps))) - 1
    step = f"{what} " if room >= _BAR // 2 + cell_len(what) + 1 else ""
    cells = min(_BAR, room - cell_len(step))
    meter = bar(cells, [(fraction, "reading")]) if cells > 1 else ()
    return ((opening, "text"), *meter, (f"{done}{step} ", "dim"), (keeps, "accent"))


def fit_short(text: str, width: int) -> str:
    """Cut a text to at most `width` cells."""
    return fit(text, width).rstrip()
