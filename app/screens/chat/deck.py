"""Shows the active chat's transcript and keeps those of the few chats seen last.

A chat that is not shown costs nothing while it streams: its transcript only becomes stale, and is
brought up to date when it is shown again. Transcripts, with Markdown and pygments behind them, are
imported for the first message: the first frame of an empty chat does not wait for them.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Container
from textual.content import Content
from textual.widgets import Static

from app.chat.events import AnswerFinished, PathChanged, SessionEvent, TextStreamed
from app.chat.reasoning import Part
from app.chat.session import ChatSession
from app.screens.chat.views import message_view, thinking_cost, views_of

if TYPE_CHECKING:
    from app.transcript.column import Place
    from app.transcript.view import Transcript

_KEPT = 3


@dataclass
class _Card:
    transcript: "Transcript"
    ids: list[str] = field(default_factory=list)
    stale: bool = True


class TranscriptDeck(Container):
    """The middle of the screen: one transcript, or a welcome for an empty chat."""

    def __init__(self, text_width: int, *, id: str | None = None) -> None:
        """text_width: the most columns of text."""
        super().__init__(id=id)
        self._text_width = text_width
        self._cards: OrderedDict[str, _Card] = OrderedDict()
        self._places: dict[str, Place | None] = {}
        """Reading positions in the chats whose transcripts were dropped."""
        self._active: ChatSession | None = None
        self._next_code = 0
        self.covered = False
        """Whether another screen hides everything: then the active chat's transcript becomes stale, too."""

    def compose(self) -> ComposeResult:
        """The welcome; transcripts come as they are needed."""
        yield Static(id="welcome")

    @property
    def transcript(self) -> "Transcript | None":
        """The active chat's transcript, once it has messages."""
        card = self._cards.get(self._active.conversation.id) if self._active else None
        return card.transcript if card else None

    @property
    def transcripts(self) -> "list[Transcript]":
        """All transcripts that are kept."""
        return [card.transcript for card in self._cards.values()]

    def next_code_block(self) -> tuple[str, int, int] | None:
        """Return the last answer's next code block, its number and how many there are."""
        node = self._active.conversation.last_answer() if self._active is not None else None
        transcript = self.transcript
        blocks = transcript.code_blocks(node.id) if transcript is not None and node is not None else []
        if not blocks:
            return None
        index = self._next_code % len(blocks)
        self._next_code += 1
        return blocks[index].text, index + 1, len(blocks)

    def set_text_width(self, columns: int) -> None:
        """Wrap at so many columns at most from now on."""
        self._text_width = columns
        for transcript in self.transcripts:
            transcript.set_text_width(columns)
        self.on_resize()

    def on_resize(self) -> None:
        """Have the welcome stand where messages will: in the middle of a wide view."""
        beside = max(0, self.size.width - self._text_width) // 2
        self.query_one("#welcome", Static).styles.margin = (0, 0, 0, beside)

    def greet(self, welcome: Content) -> None:
        """Have empty chats say this."""
        self.query_one("#welcome", Static).update(welcome)

    async def show(self, session: ChatSession) -> None:
        """Bring a chat to the front."""
        self._active = session
        self._next_code = 0
        key = session.conversation.id
        card = self._cards.get(key)
        if card is None and session.conversation.leaf is not None:
            from app.transcript.view import Transcript

            card = self._cards[key] = _Card(Transcript(text_width=self._text_width, classes="chat"))
            await self.mount(card.transcript)
        if card is not None:
            self._cards.move_to_end(key)
            self._bring_back(card, session)
        for other_key, other in self._cards.items():
            other.transcript.display = other_key == key
        self.set_class(card is None, "-empty")
        self._drop_oldest()

    def forget(self, session: ChatSession) -> None:
        """Drop a closed chat's transcript."""
        self._places.pop(session.conversation.id, None)
        card = self._cards.pop(session.conversation.id, None)
        if card is not None:
            self._take_out(card)

    def _take_out(self, card: _Card) -> None:
        # A widget removed while the last layout still holds it would be painted without a screen.
        card.transcript.display = False
        self.call_after_refresh(card.transcript.remove)

    def apply(self, session: ChatSession, event: SessionEvent) -> None:
        """Take an event of any chat; only the active one's touches widgets."""
        card = self._cards.get(session.conversation.id)
        if card is None:
            return
        if session is not self._active or self.covered:
            card.stale = True
        elif isinstance(event, PathChanged):
            self._refresh(card, session, event.since)
        elif isinstance(event, TextStreamed) and event.node_id in card.ids:
            self._tell_cost(card, session, event.node_id)
            for part, text in event.pieces:
                card.transcript.append_text(event.node_id, text, reasoning=part is Part.REASONING)
        elif isinstance(event, AnswerFinished) and event.node_id in card.ids:
            view = message_view(session, session.conversation.nodes[event.node_id])
            card.transcript.reasoning_cost(view.id, view.reasoning_tokens, view.reasoning_seconds)
            card.transcript.finish(view.id, view.status, view.footer)

    @staticmethod
    def _tell_cost(card: _Card, session: ChatSession, node_id: str) -> None:
        """Say what thinking has cost while it goes on."""
        node = session.conversation.nodes[node_id]
        if node.reasoning and not node.text:
            speed = session.stats.tok_s if session.stats is not None else 0.0
            card.transcript.reasoning_cost(node_id, *thinking_cost(node, speed))

    def reveal(self, message_id: str, words: Sequence[str]) -> None:
        """Bring the first of the words in a message of the active chat into view, and mark it."""
        card = self._cards.get(self._active.conversation.id) if self._active else None
        if card is not None and message_id in card.ids:
            card.transcript.reveal(message_id, words)

    def _bring_back(self, card: _Card, session: ChatSession) -> None:
        """Bring a transcript up to date where its reader left it."""
        if card.stale:
            place = self._places.pop(session.conversation.id, None) or card.transcript.place
            views = views_of(session)
            card.transcript.show(views, place)
            card.ids, card.stale = [view.id for view in views], False

    def _refresh(self, card: _Card, session: ChatSession, since: str | None) -> None:
        views = views_of(session)
        ids = [view.id for view in views]
        same = 0 if card.stale else _common(card.ids, ids)
        if since in ids:
            same = min(same, ids.index(since))
        if not same:
            card.transcript.show(views)
        else:
            if same < len(card.ids):
                card.transcript.remove_from(card.ids[same])
            for view in views[same:]:
                card.transcript.begin(view)
            card.transcript.jump_to_end()
        card.ids, card.stale = ids, False

    def _drop_oldest(self) -> None:
        while len(self._cards) > _KEPT:
            key, card = self._cards.popitem(last=False)
            self._places[key] = card.transcript.place
            self._take_out(card)


def _common(old: list[str], new: list[str]) -> int:
    count = 0
    for before, after in zip(old, new, strict=False):
        if before != after:
            break
        count += 1
    return count
