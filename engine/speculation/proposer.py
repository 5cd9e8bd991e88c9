"""What is known of one sequence's text: how it could go on, and how often that were accepted."""

from dataclasses import dataclass, field

from engine.scheduler.sequence import Sequence
from engine.speculation.ngram_index import NgramIndex

CHANCES = ((8, 0.8), (4, 0.6), (3, 0.4), (2, 0.25))
"""(shortest match, chance of being accepted at first): the longer the match, the likelier it is right."""

LEARNING = 0.1
"""Weight of one draft token against those before it."""

FIRST_CREDIT = 0.5
MOST_CREDIT = 2.0
EARNED = 0.01
"""The ledger of a sequence, in ticks without drafts: what it may lose at first, what it may keep of
the ticks that draft tokens saved, and what it earns with every tick."""

CATCH_UP = 32
"""Tokens indexed in a tick, of a row that decodes."""

CLOSE_TICKS = 6
"""Ticks without a draft token behind one that was accepted, in which the text is likely to match again."""


@dataclass(slots=True)
class Proposer:
    """What is known of one sequence."""

    index: NgramIndex = field(default_factory=NgramIndex)
    chances: list[float] = field(default_factory=lambda: [chance for _, chance in CHANCES])
    credit: float = FIRST_CREDIT
    level: int | None = None
    """Of `CHANCES`, the present match's; None without one, and once the tick behind it is settled."""
    after: int = 0
    """Where the text went on after the match."""
    draft_ticks: float = 0.0
    """What a draft token of this tick costs, in ticks without drafts."""
    close: int = 0
    """Ticks left of `CLOSE_TICKS`."""
    _known: int = 0
    """Tokens that were matched."""

    def look(self, sequence: Sequence) -> bool:
        """Bring the index up to date and match the end of the text; whether there is a match."""
        token_ids = sequence.token_ids
        self._known = len(token_ids)
        self.index.extend(token_ids, min(len(token_ids) - 1, self.index.seen + CATCH_UP))
        length, self.after = self.index.match(token_ids)
        self.level = None
        if not length:
            return False
        self.level = next((level for level, (least, _) in enumerate(CHANCES) if length >= least), None)
        return True

    @property
    def chance(self) -> float:
        """That the next token is the one after the match."""
        return 0.0 if self.level is None else self.chances[self.level]

    def settle(self, sequence: Sequence, num_draft: int, accepted: int) -> None:
        """Account a committed tick: what it gave and cost, and what that says about such matches."""
        self.credit = min(MOST_CREDIT, self.credit + EARNED + accepted - num_draft * self.draft_ticks)
        self.close = CLOSE_TICKS if accepted else max(0, self.close - 1)
        level, self.level = self.level, None
        if level is None:
            return
        chance = self.chances[level]
        if not num_draft:
            # What would have been drafted costs nothing to compare.
            token_ids = sequence.token_ids
            if len(token_ids) == self._known + 1:
                true = token_ids[self.after] == token_ids[-1]
                self.chances[level] = chance + LEARNING * (true - chance)
            return
        kept = (1.0 - LEARNING) ** accepted
        chance = 1.0 - kept * (1.0 - chance)
        self.chances[level] = chance if accepted == num_draft else chance * (1.0 - LEARNING)
