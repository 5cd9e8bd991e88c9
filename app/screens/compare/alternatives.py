"""The answers to one message in columns: they are watched while they stream, and one is chosen."""

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.screen import Screen

from app.chat.conversation import MessageNode, Role, Status
from app.chat.events import NOT_WRITING, SessionEvent, TabState, TextStreamed
from app.chat.reasoning import Part
from app.chat.session import ChatSession
from app.models.builtin import model_title
from app.models.loader import EngineService
from app.screens.compare.column import LEAST_WIDTH, AnswerColumn, Shown, answer_views
from app.screens.compositor import paint_dirty_rows_only
from app.widgets.lines import LineWidget, Row, Span, fit, key_row, pair, row_width
from app.widgets.states import LOOKS
from engine import SequenceStats

_PERIOD = 0.25
_MOST_COLUMNS = 4


class AlternativesView(Screen[str | None]):
    """Ends with the id of the answer that goes into the chat, or with nothing."""

    CSS_PATH: ClassVar = ["compare.tcss"]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop, then back", show=False),
        Binding("q", "dismiss(None)", "Back", show=False),
        Binding("enter", "choose", "Choose", show=False),
        Binding("left,shift+tab", "step(-1)", show=False, priority=True),
        Binding("right,tab", "step(1)", show=False, priority=True),
        Binding("up", "scroll_text(-1, False)", show=False),
        Binding("down", "scroll_text(1, False)", show=False),
        Binding("pageup", "scroll_text(-1, True)", show=False),
        Binding("pagedown", "scroll_text(1, True)", show=False),
        *(Binding(str(number), f"promote({number})", show=False) for number in range(1, 10)),
    ]

    def __init__(
        self, session: ChatSession, engine: EngineService, node_ids: Sequence[str] | None = None
    ) -> None:
        """node_ids: the answers; None: those that the session is asking for at once."""
        super().__init__()
        self._session, self._engine = session, engine
        self._node_ids = node_ids
        self._chosen = self._first = 0
        paint_dirty_rows_only(self)

    def compose(self) -> ComposeResult:
        """Head, columns, keys."""
        yield LineWidget(id="head")
        with Horizontal(id="columns"):
            for number in range(1, len(self.shown()) + 1):
                yield AnswerColumn(number, id=f"column_{number}")
        yield LineWidget(id="keys")

    def on_mount(self) -> None:
        """Follow the speeds."""
        leaf = self._session.conversation.leaf
        ids = [one.node.id if one.node is not None else "" for one in self.shown()]
        self._chosen = ids.index(leaf) if leaf in ids else 0
        self.set_interval(_PERIOD, self.refresh_heads)
        self.call_after_refresh(self.draw)

    def on_resize(self) -> None:
        """Show as many columns as there is room for."""
        self.call_after_refresh(self.draw)

    def take(self, session: ChatSession, event: SessionEvent) -> None:
        """Show what has happened in a chat, if it is this one."""
        if session is not self._session or not self.is_mounted:
            return
        if isinstance(event, TextStreamed):
            for column in self._columns:
                for part, text in event.pieces:
                    column.append(event.node_id, text, reasoning=part is Part.REASONING)
        else:
            self.draw()

    def on_click(self, event: events.Click) -> None:
        """Highlight the column that is clicked."""
        above = event.widget.ancestors_with_self if event.widget is not None else ()
        for at, column in enumerate(self._columns):
            if column in above:
                self._chosen = at
                self.draw()

    def refresh_heads(self) -> None:
        """Show the newest speeds while something is written."""
        if self._session.busy and self.is_current:
            self.draw()

    def shown(self) -> list[Shown]:
        """What the columns show now."""
        session, nodes = self._session, self._session.conversation.nodes
        numbers = _numbers(session, self._engine)
        fan = session.fan
        labels = {column.first: column.variant.label for column in fan.columns} if fan is not None else {}
        if self._node_ids is None:
            return [
                _shown(session, column.variant.label, column.first, column.error, numbers)
                for column in (fan.columns if fan is not None else ())
            ]
        found = []
        for node_id in self._node_ids:
            node = nodes[node_id]
            label = labels.get(node_id) or (model_title(node.model) if node.model else "")
            found.append(_shown(session, label, node_id, None, numbers))
        return found

    @property
    def _columns(self) -> Sequence[AnswerColumn]:
        return list(self.query(AnswerColumn))

    @property
    def _room(self) -> int:
        """How many columns stand beside each other."""
        return max(1, min(_MOST_COLUMNS, self.size.width // LEAST_WIDTH, len(self._columns)))

    def draw(self) -> None:
        """Bring everything but streamed text up to date."""
        if not self.is_mounted:
            return
        shown, room = self.shown(), self._room
        self._first = min(max(self._first, self._chosen - room + 1), self._chosen, len(shown) - room)
        for at, (column, one) in enumerate(zip(self._columns, shown, strict=True)):
            column.display = self._first <= at < self._first + room
            column.show(one, chosen=at == self._chosen)
        width = self.size.width
        self.query_one("#head", LineWidget).set_rows([self._head(shown, room, width)])
        self.query_one("#keys", LineWidget).set_rows([_keys(len(shown), width, busy=self._session.busy)])

    def _head(self, shown: Sequence[Shown], room: int, width: int) -> Row:
        right: list[Span] = []
        if room < len(shown):
            for at, one in enumerate(shown):
                style = "accent" if at == self._chosen else "dim"
                right.append((f"{at + 1}{_glyph(one)} ", style))
        asked = self._asked()
        left = f" {len(shown)} answers"
        rest = width - len(left) - row_width(tuple(right)) - 3
        quoted = f" to “{fit(asked, rest - 6).rstrip()}”" if asked and rest > 16 else ""
        return pair(((left, "strong"), (quoted, "dim")), tuple(right), width)

    def _asked(self) -> str:
        fan, nodes = self._session.fan, self._session.conversation.nodes
        if self._node_ids:
            parent = nodes[self._node_ids[0]].parent
        else:
            parent = fan.asked if fan is not None else None
            if parent is None and fan is not None and fan.text is not None:
                return " ".join(fan.text.split())
        return " ".join(nodes[parent].text[:400].split()) if parent in nodes else ""

    def action_step(self, step: int) -> None:
        """Go to another column."""
        self._chosen = (self._chosen + step) % len(self._columns)
        self.draw()

    def action_scroll_text(self, step: int, page: bool) -> None:
        """Scroll the column that is highlighted."""
        self._columns[self._chosen].scroll_lines(step, page=page)

    def action_choose(self) -> None:
        """Put the highlighted answer into the chat."""
        self.action_promote(self._chosen + 1)

    def action_promote(self, number: int) -> None:
        """Put an answer into the chat; the others are its alternatives."""
        shown = self.shown()
        node = shown[number - 1].node if number <= len(shown) else None
        if node is not None:
            self.dismiss(node.id)

    def action_stop(self) -> None:
        """Stop all answers; go back where none is written."""
        if not self._session.stop():
            self.dismiss(None)


def _numbers(session: ChatSession, engine: EngineService) -> dict[str, SequenceStats]:
    """The engine's numbers of a chat's running answers, by their messages."""
    stats = engine.stats()
    by_id = {one.sequence_id: one for one in stats.sequences} if stats is not None else {}
    ids = {answer.node_id: answer.generation.sequence_id for answer in session.running}
    return {node_id: by_id[number] for node_id, number in ids.items() if number in by_id}


def _shown(
    session: ChatSession,
    label: str,
    first: str | None,
    error: str | None,
    numbers: dict[str, SequenceStats],
) -> Shown:
    """What a column shows of the answer that begins with `first`: its newest step, the others above it."""
    if first is None:
        return Shown(label, None, error=error)
    steps = session.conversation.branch_from(first)
    node = next(node for node in reversed(steps) if node.role is Role.ASSISTANT)
    stats = numbers.get(node.id)
    return Shown(label, node, stats, _state(session, steps, stats), error, answer_views(session, steps))


def _state(session: ChatSession, steps: Sequence[MessageNode], stats: SequenceStats | None) -> TabState:
    if (calls := session.tools.state_of(steps)) is not None:
        return calls
    if steps[-1].status is not Status.STREAMING:
        return TabState.QUEUED if session.waits_to_call(steps[-1].id) else TabState.IDLE
    if session.paused:
        return TabState.PAUSED
    begun = steps[-1].token_ids or steps[-1].text
    state = TabState.GENERATING if begun else TabState.READING
    return NOT_WRITING.get(stats.state, state) if stats is not None else state


def _glyph(shown: Shown) -> str:
    if shown.error is not None:
        return LOOKS[TabState.ERROR].glyph
    return LOOKS[TabState.QUEUED if shown.node is None else shown.state].glyph


def _keys(count: int, width: int, *, busy: bool) -> Row:
    keys = [("Enter", "choose"), (f"1–{count}", "choose that"), ("← →", "column"), ("↑ ↓", "scroll")]
    if busy:
        keys.append(("q", "back"))
    return key_row(keys, ("Esc", "stop all" if busy else "back"), width)
