"""Who runs and who waits, in which order: ranks, the focused sequence, and pauses on request.

Two orders matter: who is admitted next, and who gives its blocks up when KV is full. In both, the
sequence that somebody looks at comes before all others; then ranks decide, which are arrival times
with a head start for a higher priority.
"""

from bisect import insort
from collections.abc import Iterator

from engine.api.request import Priority
from engine.api.stats import SequenceState
from engine.scheduler.sequence import HEAD_START, Sequence, WaitCause


class WaitingQueue:
    """Waiting sequences by rank: in order of arrival, a priority counting as an earlier one.

    A preempted sequence keeps its rank and so stands before all that came after it.
    """

    def __init__(self, head_start_s: float) -> None:
        self._head_start_s = head_start_s
        self._waiting: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting)

    def rank(self, sequence: Sequence) -> tuple[float, int]:
        """Place of a new sequence in the total order of admission."""
        early = HEAD_START[sequence.priority] * self._head_start_s
        return (sequence.arrival - early, sequence.sequence_id)

    def add(self, sequence: Sequence) -> None:
        """Queue by rank."""
        insort(self._waiting, sequence, key=lambda item: item.rank)

    def remove(self, sequence: Sequence) -> None:
        """Take out of the queue."""
        self._waiting.remove(sequence)

    def position(self, sequence: Sequence) -> int:
        """1 for the next one; 0 if it does not wait."""
        # `list.index` would put the whole sequence, tokens and all, into the error of a missing one.
        return next((place for place, other in enumerate(self._waiting, 1) if other is sequence), 0)


class SequenceQueue:
    """Live sequences: those that hold blocks run, the others wait."""

    def __init__(self, head_start_s: float) -> None:
        self.focus: int | None = None
        """The sequence that comes first."""
        self.waiting = WaitingQueue(head_start_s)
        self.running: list[Sequence] = []
        """Sequences that hold blocks, by rank."""

    def is_focused(self, sequence: Sequence) -> bool:
        """Whether it comes before all others."""
        return sequence.sequence_id == self.focus

    def enter(self, sequence: Sequence) -> None:
        """Take in a new sequence; it waits."""
        sequence.rank = self.waiting.rank(sequence)
        sequence.state = SequenceState.QUEUED
        self.waiting.add(sequence)

    def start(self, sequence: Sequence) -> None:
        """It holds blocks from now on."""
        self.waiting.remove(sequence)
        insort(self.running, sequence, key=lambda item: item.rank)

    def stop(self, sequence: Sequence) -> None:
        """Its blocks are gone: it waits again, in its old place."""
        self.running.remove(sequence)
        self.waiting.add(sequence)

    def leave(self, sequence: Sequence) -> None:
        """It has ended."""
        (self.running if sequence.block_table else self.waiting).remove(sequence)

    def next_waiting(self) -> Sequence | None:
        """Who is admitted next: the focused one if it waits, else the first in rank."""
        ready = [sequence for sequence in self.waiting if not sequence.user_paused]
        return next((s for s in ready if self.is_focused(s)), ready[0] if ready else None)

    @property
    def num_active(self) -> int:
        """Running sequences that are not paused on request."""
        return sum(not sequence.user_paused for sequence in self.running)

    def active(self) -> Iterator[Sequence]:
        """Running sequences that are not paused on request, the focused one first, then by rank."""
        yield from (s for s in self.running if not s.user_paused and self.is_focused(s))
        yield from (s for s in self.running if not s.user_paused and not self.is_focused(s))

    def victims(self) -> list[Sequence]:
        """Running sequences in the order in which they give up their blocks.

        What is paused on request goes first, or nobody might be left who can run; then the newest; the
        focused one comes last.
        """
        newest = self.running[::-1]
        return sorted(newest, key=lambda s: (not s.user_paused, self.is_focused(s)))

    def pause(self, sequence: Sequence) -> None:
        """Compute nothing more for it; its blocks stay while nobody needs them."""
        if not sequence.user_paused:
            sequence.user_paused = True
            sequence.state, sequence.wait_cause = SequenceState.PAUSED, WaitCause.REQUEST

    def resume(self, sequence: Sequence) -> None:
        """Undo `pause`."""
        if not sequence.user_paused:
            return
        sequence.user_paused, sequence.wait_cause = False, None
        if sequence.block_table:
            decodes = sequence.remaining == 1 and sequence.num_generated
            sequence.state = SequenceState.DECODE if decodes else SequenceState.PREFILL
        else:
            sequence.state = SequenceState.PAUSED if sequence.preemptions else SequenceState.QUEUED

    def set_priority(self, sequence: Sequence, priority: Priority) -> None:
        """Change its share of the prefill budget and its place in both orders."""
        self.leave(sequence)
        sequence.priority = priority
        sequence.rank = self.waiting.rank(sequence)
        if sequence.block_table:
            insort(self.running, sequence, key=lambda item: item.rank)
        else:
            self.waiting.add(sequence)
