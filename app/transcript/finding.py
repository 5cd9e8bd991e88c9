"""Finding in a transcript: every hit is marked, counted and gone to; the turns of a chat, too."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import partial

from textual.geometry import Offset
from textual.message import Message
from textual.selection import Selection

from app.markdown.code import spend
from app.terminal.later import later
from app.transcript.base import TranscriptBase
from app.transcript.column import Place
from app.transcript.message import HEADER, MessageRows
from app.transcript.paint import Mark
from app.transcript.reasoning import REASONING
from app.transcript.search import MOST_HITS, Hit, Word

# What is gone to has some rows before it.
_ROWS_ABOVE = 3
_SEARCH_SECONDS = 0.01


class Finding(TranscriptBase):
    """Marks the hits of a word where they are drawn, and collects them in small steps for the count."""

    _word: Word | None = None
    _here: Hit | None = None
    _hits: Sequence[Hit] = ()
    _known: dict[str, tuple[object, list[tuple[int, int]]]]
    """The places in each message that was searched, and what it was like then."""
    _collecting: Iterator[None] | None = None
    _turn: tuple[str, float] | None = None
    """The question that was gone to last, and the row of the view's top since."""

    class Counted(Message, namespace="transcript"):
        """How many hits there are, and which of them is gone to, 0 for none; `whole` when all are counted."""

        def __init__(self, number: int, count: int, *, whole: bool) -> None:
            super().__init__()
            self.number = number
            self.count = count
            self.whole = whole

    def find(self, text: str) -> None:
        """Mark every place that shows `text` and go to the nearest one; nothing is marked without text."""
        if self._word is not None and self._word.text == text:
            return
        self._word = Word(text) if text else None
        self._here, self._hits, self._known = None, [], {}
        self._collect()
        self.refresh()

    def find_next(self, step: int = 1) -> None:
        """Go to the next hit, or with -1 to the one before, round the end."""
        if self._word is None or not self._column.width:
            return
        self._catch_up()
        if not self._hits:
            return
        if self._here is None:
            self._show_nearest()
            return
        side = bisect_right if step > 0 else bisect_left
        at = side(self._hits, self._here) - (step < 0)
        self._show_hit(self._hits[at % len(self._hits)])

    def _messages_changed(self) -> None:
        """Search again what has changed; the reader stays where he is."""
        if self._word is not None:
            if self._here is not None and self._here.number >= len(self._column.items):
                self._here = None
            self._collect(go=False)

    def _collect(self, *, go: bool = True) -> None:
        """Collect all hits anew, a little at a time; then go to the nearest."""
        if self._word is None:
            self._collecting = None
            self._report()
            return
        self._collecting = self._each(self._word)
        self._collect_some(self._collecting, go=go)

    def _collect_some(self, work: Iterator[None], *, go: bool) -> None:
        if work is not self._collecting:
            return
        if not self._column.width:
            self.call_after_refresh(self._collect_some, work, go=go)
            return
        place = self._place()
        ended = spend(work, _SEARCH_SECONDS)
        self._column.measure()
        self._arrange(place)
        if not ended:
            self._report()
            later(self, _SEARCH_SECONDS, partial(self._collect_some, work, go=go))
            return
        self._collecting = None
        if go and self._hits and self._here is None:
            self._show_nearest()
        self._report()

    def _catch_up(self) -> None:
        """Have the hits of what is there now."""
        if self._word is not None and (self._collecting is None or not self._hits):
            place = self._place()
            for _ in self._each(self._word):
                pass
            self._column.measure()
            self._arrange(place)

    def _each(self, word: Word) -> Iterator[None]:
        """Search one message after the other; known ones that have not changed are taken as they are."""
        found: list[Hit] = []
        for number, item in enumerate(list(self._column.items)):
            state = (item.extent, self._column.width)
            known = self._known.get(item.id)
            if known is None or known[0] != state:
                places: list[tuple[int, int]] = []
                if word.may_be_in(item.text) or word.may_be_in(item.reasoning.text):
                    places = list(word.places(item.searched(self._column.width)))
                known = self._known[item.id] = (state, places)
            found.extend(Hit(number, place) for place in known[1])
            if len(found) >= MOST_HITS:
                break
            yield
        self._hits = found

    def _report(self) -> None:
        hits, here = self._hits, self._here
        number = bisect_right(hits, here) if here is not None and here in hits else 0
        self.post_message(self.Counted(number, len(hits), whole=self._collecting is None))

    def _show_nearest(self) -> None:
        """Go to the first hit from the view's top on, else to the last."""
        place = self._column.place(round(self.scroll_y))
        top = Hit(self._column.number(place.message_id), place.mark) if place else Hit(0, (HEADER, 0))
        at = bisect_left(self._hits, top)
        self._show_hit(self._hits[min(at, len(self._hits) - 1)])

    def _show_hit(self, hit: Hit) -> None:
        """Bring a hit into view, unfolding what it stands in."""
        self._here = hit
        item = self._column.items[hit.number]
        if hit.mark[0] == REASONING and not item.reasoning.expanded:
            self._fold(item, expanded=True)
        self._bring_into_view(Place(item.id, hit.mark))
        self.refresh()
        self._report()

    def _fold(self, item: MessageRows, *, expanded: bool) -> None:
        place = self._place()
        item.reasoning.expanded = expanded
        if item.width:
            item.layout(self._column.width)
        self._arrange(place)

    def _bring_into_view(self, place: Place) -> None:
        """Scroll to a place unless it is in view; then some rows stand before it."""
        column = self._column
        column.lay_out(column.item(place.message_id))
        column.measure()
        top, row = round(self.scroll_y), column.row(place)
        if top <= row < top + self._view_height - 1 and not self._once_sized:
            return
        self._go_to(place)
        self._go_to(column.place(max(0, column.row(place) - _ROWS_ABOVE)))

    def reveal(self, message_id: str, words: Sequence[str]) -> None:
        """Bring the first of the words in a message into view, marked as what is selected is."""
        if not self._column.width:
            self._once_sized = partial(self.reveal, message_id, words)
            return
        column = self._column
        item = column.item(message_id)
        self._go_to(Place(message_id, (HEADER, 0)))
        rows = item.searched(column.width)
        found = ((word, next(Word(word).places(rows), None)) for word in words if word)
        word, mark = next(((word, mark) for word, mark in found if mark is not None), ("", (HEADER, 0)))
        if mark[0] == REASONING:
            self._fold(item, expanded=True)
        place = Place(message_id, mark)
        self._go_to(place)
        self._go_to(column.place(max(0, column.row(place) - _ROWS_ABOVE)))
        row = column.row(place)
        line = item.rows[row - column.top(column.number(message_id))]
        start = self._left + line.lead + mark[1] - line.mark[1]
        y = row - self._origin
        marked = Selection(Offset(start, y), Offset(start + len(word), y))
        self.screen.selections = {self: marked} if word else {}

    # turns

    def go_to_turn(self, step: int) -> bool:
        """Go to the question before the one in view, or with 1 to the next; tell whether there is one.

        Behind the last one is the end.
        """
        turns = [item for item in self._column.items if item.role == "user"]
        if not turns or not self._column.width:
            return False
        at = self._turn_from(turns, step)
        if at >= len(turns):
            self._turn = None
            self._go_to(None)
        if not 0 <= at < len(turns):
            return at > 0
        item = turns[at]
        self._go_to(Place(item.id, (HEADER, 0)))
        self._turn = item.id, self.scroll_y
        self.refresh()
        return True

    def _turn_from(self, turns: Sequence[MessageRows], step: int) -> int:
        """Return which question is a step away from what is in view."""
        ids = [item.id for item in turns]
        if self._turn is not None and self._turn[1] == self.scroll_y and self._turn[0] in ids:
            return ids.index(self._turn[0]) + step
        if self._follow:
            return len(turns) - (step < 0)
        top = round(self.scroll_y)
        tops = [self._column.top(self._column.number(item.id)) for item in turns]
        at = bisect_right(tops, top) - 1
        # In the middle of a turn the question before is its own.
        return at + step if at >= 0 and tops[at] == top else at + (step > 0)

    # drawing

    def _marks(self, item: MessageRows, within: int) -> Sequence[Mark]:
        line = item.rows[within]
        if self._turn is not None and line.mark[0] == HEADER and self._turn == (item.id, self.scroll_y):
            return [(0, len(line.text), "hithere")]
        if self._word is None:
            return ()
        here = self._here
        shown = here is not None and self._column.items[here.number : here.number + 1] == [item]
        at = here.mark if here is not None and shown else None
        return self._word.spans(item.rows, within, at)
