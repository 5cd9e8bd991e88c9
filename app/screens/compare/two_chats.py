"""Two chats turn by turn: the same turn of both beside each other, with what it cost and a vote on it."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Input

from app.chat.conversation import Conversation, MessageNode, Role
from app.chat.events import SessionEvent, TextStreamed
from app.chat.reasoning import Part
from app.chat.session import ChatSession
from app.chat.votes import Vote, vote, vote_on
from app.models.builtin import model_title
from app.models.loader import EngineService
from app.screens.compare.column import AnswerColumn, Shown, answer_views
from app.screens.compare.word_diff import Piece, shared_part, word_diff
from app.screens.compositor import paint_dirty_rows_only
from app.terminal.controls import clean_lines
from app.widgets import contents
from app.widgets.lines import LineWidget, Row, fit, key_row, pair

_PERIOD = 0.25
_VOTES = {"1": Vote.BETTER, "2": Vote.WORSE, "0": Vote.EVEN}
"""By keys, what the left answer is against the right one."""
_ONLY_LEFT, _ONLY_RIGHT = "$error", "$success"
_KEYS = (
    ("← →", "turn"),
    ("1 2 0", "left, right, even"),
    ("d", "difference"),
    ("a", "ask both"),
    ("↑ ↓", "scroll"),
)


Turn = tuple[MessageNode | None, MessageNode | None]
"""A message and its answer."""
NO_TURN: Turn = (None, None)


class CompareView(Screen[None]):
    """Shows two tabs; a message that is written here is sent in both."""

    CSS_PATH: ClassVar = ["compare.tcss"]
    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back", show=False),
        Binding("q", "dismiss", "Back", show=False),
        Binding("left", "turn(-1)", show=False),
        Binding("right", "turn(1)", show=False),
        Binding("home", "turn(-100000)", show=False),
        Binding("end", "turn(100000)", show=False),
        Binding("up", "scroll_text(-1, False)", show=False),
        Binding("down", "scroll_text(1, False)", show=False),
        Binding("pageup", "scroll_text(-1, True)", show=False),
        Binding("pagedown", "scroll_text(1, True)", show=False),
        Binding("d", "difference", show=False),
        Binding("a,enter", "ask", show=False),
        *(Binding(key, f"vote('{key}')", show=False) for key in _VOTES),
    ]

    def __init__(
        self,
        left: ChatSession,
        right: ChatSession,
        engine: EngineService,
        may_write: Callable[[], bool],
    ) -> None:
        """may_write: tells, and says why not, where one of the chats is only read here."""
        super().__init__()
        self._sides = (left, right)
        self._engine, self._may_write = engine, may_write
        self._turn = max(0, len(self._turns) - 1)
        self._differs = False
        paint_dirty_rows_only(self)

    def compose(self) -> ComposeResult:
        """Head, question, two answers, what to send to both, keys."""
        yield LineWidget(id="head")
        yield LineWidget(id="question")
        with Horizontal(id="columns"):
            yield AnswerColumn(1)
            yield AnswerColumn(2)
        yield Input(placeholder="Ask both", id="ask", compact=True)
        yield LineWidget(id="keys")

    def on_mount(self) -> None:
        """Follow the speeds."""
        self.set_interval(_PERIOD, self.refresh_heads)
        self.call_after_refresh(self.draw)

    def on_resize(self) -> None:
        """Use the width."""
        self.call_after_refresh(self.draw)

    def take(self, session: ChatSession, event: SessionEvent) -> None:
        """Show what has happened in a chat, if it is one of the two."""
        if session not in self._sides or not self.is_mounted:
            return
        if isinstance(event, TextStreamed):
            column = self._columns[self._sides.index(session)]
            for part, text in event.pieces:
                column.append(event.node_id, text, reasoning=part is Part.REASONING)
        else:
            self.draw()

    def refresh_heads(self) -> None:
        """Show the newest speeds while something is written."""
        if self.is_current and any(session.busy for session in self._sides):
            contents.assign_stats(self._sides, self._engine.stats())
            self.draw()

    @property
    def _turns(self) -> list[tuple[Turn, Turn]]:
        left, right = (turns_of(side.conversation) for side in self._sides)
        return list(zip_longest(left, right, fillvalue=NO_TURN))

    @property
    def _columns(self) -> Sequence[AnswerColumn]:
        return list(self.query(AnswerColumn))

    @property
    def _answers(self) -> tuple[MessageNode | None, MessageNode | None]:
        """The two answers that are shown."""
        turns = self._turns
        left, right = turns[self._turn] if turns else (NO_TURN, NO_TURN)
        return left[1], right[1]

    def draw(self) -> None:
        """Bring everything but streamed text up to date."""
        if not self.is_mounted:
            return
        turns, width = self._turns, self.size.width
        self._turn = min(self._turn, max(0, len(turns) - 1))
        answers = self._answers
        said = vote_on(answers[0], answers[1]) if answers[0] and answers[1] else None
        names = _names(self._sides, answers)
        for column, session, node, name, mine in zip(
            self._columns, self._sides, answers, names, (Vote.BETTER, Vote.WORSE), strict=True
        ):
            if node is None:
                column.clear()
            stats = session.stats if node is not None and node.id == session.conversation.leaf else None
            views = answer_views(session, [node] if node is not None else [])
            shown = Shown(name, node, stats, session.state, _nothing(session, node), views)
            column.show(shown, chosen=said is mine)
        self.query_one("#head", LineWidget).set_rows([self._head(len(turns), width)])
        self.query_one("#question", LineWidget).set_rows(_question(turns[self._turn], width) if turns else [])
        self.query_one("#keys", LineWidget).set_rows([key_row(_KEYS, ("Esc", "back"), width)])

    def _head(self, count: int, width: int) -> Row:
        tally = self._tally()
        place = f" Turn {self._turn + 1} of {count}" if count else " No message yet"
        return pair(((place, "strong"),), ((f"{tally} ", "dim"),) if tally else (), width)

    def _tally(self) -> str:
        """How the votes on all turns are shared out."""
        votes = [vote_on(left[1], right[1]) for left, right in self._turns if left[1] and right[1]]
        if not any(votes):
            return ""
        counts = [f"{name} {votes.count(vote)}" for name, vote in (("1:", Vote.BETTER), ("2:", Vote.WORSE))]
        return "votes " + "  ".join([*counts, f"even: {votes.count(Vote.EVEN)}"])

    def action_back(self) -> None:
        """Leave the line that is written in, or the view."""
        if self.has_class("-asking"):
            self.remove_class("-asking")
            self.set_focus(None)
        else:
            self.dismiss()

    def action_turn(self, step: int) -> None:
        """Go to another turn."""
        last = max(0, len(self._turns) - 1)
        self._turn = min(last, max(0, self._turn + step))
        self._leave_difference()
        self.draw()

    def action_scroll_text(self, step: int, page: bool) -> None:
        """Scroll both answers."""
        for column in self._columns:
            column.scroll_lines(step, page=page)

    def action_vote(self, key: str) -> None:
        """Say which answer is better; the same key again takes that back."""
        left, right = self._answers
        if left is not None and right is not None and self._may_write():
            vote(left, right, _VOTES[key])
            for session in self._sides:
                session.votes_changed()
            self.draw()

    def action_ask(self) -> None:
        """Write a message to both chats."""
        if self._may_write():
            self.add_class("-asking")
            self.query_one("#ask", Input).focus()

    @on(Input.Submitted, "#ask")
    def _on_ask(self, event: Input.Submitted) -> None:
        text = event.value
        if not text.strip():
            return
        event.input.value = ""
        self.action_back()
        for session in self._sides:
            session.send(text)
        self._turn = len(self._turns)
        self._leave_difference()
        self.draw()

    def action_difference(self) -> None:
        """Show what only one of the answers has, or the answers as they are."""
        left, right = self._answers
        if self._differs or left is None or right is None:
            self._leave_difference()
        else:
            self._differs = True
            self.run_worker(self._show_difference(left.text, right.text), group="difference", exclusive=True)

    async def _show_difference(self, left: str, right: str) -> None:
        pieces = await asyncio.to_thread(word_diff, left, right)
        if self._differs:
            for column, part, colour in zip(self._columns, pieces, (_ONLY_LEFT, _ONLY_RIGHT), strict=True):
                column.show_difference(_marked(part, colour))

    def _leave_difference(self) -> None:
        self._differs = False
        for column in self._columns:
            column.show_difference(None)


def turns_of(conversation: Conversation) -> list[Turn]:
    """Return the messages that a chat shows, each with its answer."""
    turns: list[Turn] = []
    for node in conversation.path():
        if node.role is Role.USER:
            turns.append((node, None))
        elif node.role is Role.ASSISTANT:
            question = turns.pop()[0] if turns and turns[-1][1] is None else None
            turns.append((question, node))
    return turns


def _names(sessions: Sequence[ChatSession], answers: Sequence[MessageNode | None]) -> list[str]:
    """What sets the two apart: their models, or their titles where these are the same."""
    pairs = zip(sessions, answers, strict=True)
    models = [(node.model if node is not None else one.conversation.model_path) or "" for one, node in pairs]
    if all(models) and len(set(models)) == len(models):
        return [model_title(model) for model in models]
    return [session.conversation.title for session in sessions]


def _nothing(session: ChatSession, node: MessageNode | None) -> str | None:
    """Why there is no answer, where that is not only a matter of time."""
    if node is not None or session.busy or session.queued:
        return None
    return session.models.error if session.model is None else None


def _question(turn: tuple[Turn, Turn], width: int) -> list[Row]:
    texts = [" ".join(one[0].text[:1000].split()) if one[0] is not None else "" for one in turn]
    if texts[0] == texts[1]:
        return [((f" {fit(texts[0], width - 2)}", "primary"),)]
    half = max(0, width // 2 - 2)
    return [((f" {fit(texts[0], half)}  ", "primary"), (fit(texts[1], half), "primary"))]


def _marked(pieces: Sequence[Piece], colour: str) -> Content:
    """A text with what the other one has not in a colour, underlined; above, how much both have."""
    parts: list[str | tuple[str, str]] = [
        (f"{shared_part(pieces):.0%} also in the other\n\n", "$foreground 50%")
    ]
    for text, same in pieces:
        text = clean_lines(text)
        parts.append(text if same or not text.strip() else (text, f"{colour} underline"))
    return Content.assemble(*parts)
