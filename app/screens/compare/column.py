"""One answer among others: its name and state above, its text, what it cost below."""

from collections.abc import Sequence
from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from app.chat.conversation import AnswerStats, MessageNode, Role, Status
from app.chat.events import TabState
from app.chat.session import ChatSession
from app.screens.call_lines import call_view
from app.settings.words import duration_text
from app.transcript.view import MessageView, Transcript
from app.widgets.lines import LineWidget, Row, fit, pair, row_width
from app.widgets.states import LOOKS
from engine import SequenceStats

LEAST_WIDTH = 28
"""Cells of a column: of less there are fewer columns."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a column shows; `node` is None until the engine was asked."""

    label: str
    node: MessageNode | None
    stats: SequenceStats | None = None
    """The engine's numbers while it is written."""
    state: TabState = TabState.IDLE
    error: str | None = None
    """Why there is no answer."""
    views: Sequence[MessageView] = ()
    """The answer as it is shown, with the steps above it where tools have run."""


class AnswerColumn(Vertical):
    """Shows one answer. Nothing in it has the focus: the screen's keys scroll it."""

    def __init__(self, number: int, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._number = number
        self._node_id = ""
        self._looks: Sequence[tuple[object, ...]] = ()
        """What was shown of each message, but for its text."""

    def compose(self) -> ComposeResult:
        """Head, text, cost."""
        yield LineWidget(classes="head")
        transcript = Transcript(classes="answer")
        transcript.can_focus = False
        yield transcript
        with VerticalScroll(classes="difference", can_focus=False):
            yield Static(markup=False)
        yield LineWidget(classes="cost")

    @property
    def transcript(self) -> Transcript:
        """Where the text is."""
        return self.query_one(Transcript)

    def show(self, shown: Shown, *, chosen: bool) -> None:
        """Bring the column up to date; the text streams by `append`."""
        self.set_class(chosen, "-chosen")
        node = shown.node
        self._show_text(shown.views)
        width = max(1, self.size.width - 2)
        self.query_one(".head", LineWidget).set_rows([_head(self._number, shown, width, chosen=chosen)])
        cost = ""
        if shown.error is not None:
            cost = shown.error
        elif node is not None and node.status is Status.ERROR:
            cost = node.error or ""
        elif node is not None and node.status is Status.STREAMING:
            speed = f" · {shown.stats.tok_s:.0f} tok/s" if shown.stats is not None else ""
            cost = f"{len(node.token_ids):,} tokens{speed}" if node.token_ids else ""
        elif node is not None and node.stats is not None:
            cost = cost_words(node.stats)
        style = "error" if shown.error is not None else "dim"
        rows = [((fit(f" {row}", width), style),) for row in _halves(cost, width)]
        self.query_one(".cost", LineWidget).set_rows(rows)

    def _show_text(self, views: Sequence[MessageView]) -> None:
        """Show what was not shown before, or has ended."""
        looks = [(view.id, view.status, view.head) for view in views]
        if not views or looks == self._looks:
            return
        ended = looks[:-1] == self._looks[:-1] and views[-1].id == self._node_id
        if ended and views[-1].status != Status.STREAMING:
            self.transcript.finish(views[-1].id, views[-1].status, "")
        else:
            self.transcript.show(views)
        self._node_id, self._looks = views[-1].id, looks

    def append(self, node_id: str, text: str, *, reasoning: bool) -> None:
        """Add streamed text, if it is of this column's answer."""
        if node_id == self._node_id:
            self.transcript.append_text(node_id, text, reasoning=reasoning)

    def clear(self) -> None:
        """Show no answer."""
        self.transcript.show([])
        self._node_id, self._looks = "", ()

    def show_difference(self, difference: Content | None) -> None:
        """Show a cleaned text in place of the answer; None brings the answer back."""
        self.set_class(difference is not None, "-different")
        if difference is not None:
            self.query_one(".difference Static", Static).update(difference)

    def scroll_lines(self, step: int, *, page: bool) -> None:
        """Scroll the text up or down."""
        view = self.query_one(VerticalScroll) if self.has_class("-different") else self.transcript
        rows = step * (max(1, view.size.height - 1) if page else 1)
        view.scroll_relative(y=rows, animate=False)


def answer_views(session: ChatSession, steps: Sequence[MessageNode]) -> list[MessageView]:
    """Return what a column shows of an answer and of the calls on the way to it; its cost stands below."""
    return [call_view(session, node) if node.role is Role.TOOL else _answer_view(node) for node in steps]


def _answer_view(node: MessageNode) -> MessageView:
    status = str(node.status)
    return MessageView(node.id, "assistant", node.text, node.reasoning, status, title=" ")


def cost_words(stats: AnswerStats) -> str:
    """Say what an answer cost: `312 tokens · 41 tok/s · first 120 ms · 48 cached`."""
    parts = [f"{stats.tokens:,} tokens"]
    if stats.tok_s:
        parts.append(f"{stats.tok_s:.0f} tok/s")
    if stats.ttft_ms is not None:
        parts.append(f"first {duration_text(stats.ttft_ms)}")
    if stats.cached_tokens:
        parts.append(f"{stats.cached_tokens:,} cached")
    return " · ".join(parts)


def _head(number: int, shown: Shown, width: int, *, chosen: bool) -> Row:
    """Number, name and state; where there is no room for all of it the state is its glyph alone."""
    name: Row = ((f"{number} ", "accent" if chosen else "dim"), (shown.label, "strong" if chosen else "text"))
    state = _state(shown)
    if state and row_width(name) + row_width(state) >= width:
        state = ((state[0][0][0], state[0][1]),)
    room = max(0, width - row_width(name[:1]) - row_width(state) - 1)
    return pair((name[0], (fit(shown.label, room).rstrip(), name[1][1])), state, width)


def _state(shown: Shown) -> Row:
    node = shown.node
    if shown.error is not None or (node is not None and node.status is Status.ERROR):
        return (("! failed", "error"),)
    if node is None:
        look = LOOKS[TabState.QUEUED]
    elif node.status is not Status.STREAMING and shown.state is not TabState.IDLE:
        look = LOOKS[shown.state]
    elif node.status is Status.STOPPED:
        return (("■ stopped", "queued"),)
    elif node.status is not Status.STREAMING:
        return (("■ cut off", "queued"),) if node.error else ()
    else:
        look = LOOKS[shown.state]
        if shown.stats is not None and shown.stats.tok_s:
            return ((f"{look.glyph} {shown.stats.tok_s:.0f} tok/s", look.style),)
    return ((f"{look.glyph} {look.word}", look.style),)


def _halves(text: str, width: int) -> list[str]:
    """Cut what an answer cost into the two rows that a column has for it, between its parts."""
    first: list[str] = []
    rest = text.split(" · ")
    while rest and len(" · ".join([*first, rest[0]])) <= width - 1:
        first.append(rest.pop(0))
    if not first and rest:
        return [text[: width - 1], text[width - 1 :]]
    return [" · ".join(first), " · ".join(rest)]
