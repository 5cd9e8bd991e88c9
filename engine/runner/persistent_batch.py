"""Which sequence has which row of a device's decode state, and bringing rows up to date.

A row is set once, when its sequence first runs or comes back; after that the device follows by
itself, and only new blocks of its table are sent. Behind draft tokens, which run in rows of their own
(`kernels.state.draft_rows`), and where its limit has moved, its last token, length and limit are sent again.
So a row is known in four places, each with what no other needs: its tokens and blocks (`Sequence`), what the
device has of them (here), and on the device its state and how it is sampled (`DecodeState`, `SamplerState`).
"""

from collections.abc import Container
from dataclasses import dataclass

from engine.runner.logits.edits import edits_logits
from engine.runner.model_kv import ModelKV
from engine.scheduler.sequence import Sequence
from kernels.state.decode_state import DecodeState
from kernels.state.sampler_state import RowParameters, SamplerState


@dataclass(slots=True)
class _Row:
    """What the device knows of a sequence."""

    sequence: Sequence
    preemptions: int
    known: int
    """Tokens, when the row was set or last reported."""
    limit: int
    """Most tokens that the device lets the row have."""
    blocks: int
    """Entries of the block table that were sent."""
    pages: list[int]
    """The same of the windows' tables."""
    used: int
    """Clock of the last pass with the row."""


class PersistentBatch:
    """Assigns the rows of one model's state to its sequences."""

    def __init__(self, state: DecodeState, sampler: SamplerState, kv: ModelKV) -> None:
        self._state = state
        self._kv = kv
        self._sampler = sampler
        self._rows: dict[int, _Row] = {}
        """By row number."""
        self._slots: dict[int, int] = {}
        """Row numbers by sequence id."""
        self._free = list(range(state.first_draft_row - 1, -1, -1))
        self._clock = 0

    def place(self, sequences: list[Sequence], drafted: Container[int] = ()) -> list[int]:
        """The rows of a pass's sequences, all brought up to date, in stream order.

        Of the sequences in `drafted`, by id, the pass reads blocks and sampling parameters alone.
        """
        self._clock += 1
        for sequence in sequences:
            slot = self._slots.get(sequence.sequence_id)
            if slot is not None:
                self._rows[slot].used = self._clock
        return [self._place(sequence, sequence.sequence_id in drafted) for sequence in sequences]

    def send_blocks(self, sequences: list[Sequence]) -> None:
        """Send what the block tables of placed sequences have got since."""
        for sequence in sequences:
            slot = self._slots[sequence.sequence_id]
            row = self._rows[slot]
            self._send(0, slot, row.blocks, sequence.block_table)
            row.blocks = len(sequence.block_table)
            for number, window in enumerate(sequence.windows):
                self._send(1 + number, slot, row.pages[number], window.pages)
                row.pages[number] = len(window.pages)

    def _send(self, pool: int, slot: int, known: int, table: list[int]) -> None:
        if len(table) > known:
            new = table[known:]
            self._kv.back(pool, max(new) + 1)
            self._state.set_blocks(slot, known, new, pool)

    def reported(self, sequence: Sequence) -> None:
        """The device gave this sequence a token."""
        self._rows[self._slots[sequence.sequence_id]].known += 1

    def forget(self) -> None:
        """Set every row anew: after a failed step the device's state is unknown."""
        for slot in self._rows:
            self._free.append(slot)
        self._rows.clear()
        self._slots.clear()

    def _place(self, sequence: Sequence, drafted: bool) -> int:
        slot = self._slots.get(sequence.sequence_id)
        if slot is None:
            slot = self._take()
        row = self._rows.get(slot)
        if row is None or row.sequence is not sequence or row.preemptions != sequence.preemptions:
            self._set(slot, sequence)
        elif not drafted:
            self._follow(row, slot, sequence)
        self.send_blocks([sequence])
        return slot

    def _follow(self, row: _Row, slot: int, sequence: Sequence) -> None:
        """Send what the device does not know by itself: accepted draft tokens, a limit that has moved."""
        known = len(sequence.token_ids)
        if row.known != known and edits_logits(sequence.request.sampling):
            self._set(slot, sequence)
        elif (row.known, row.limit) != (known, sequence.limit):
            self._set_fields(slot, sequence)
            row.known, row.limit = known, sequence.limit

    def _take(self) -> int:
        """A free row, or that of the sequence that has not run for longest."""
        if self._free:
            return self._free.pop()
        slot = min(self._rows, key=lambda slot: self._rows[slot].used)
        if self._rows[slot].used == self._clock:
            raise RuntimeError(f"more than {len(self._rows)} sequences in one pass")
        del self._slots[self._rows.pop(slot).sequence.sequence_id]
        return slot

    def _set(self, slot: int, sequence: Sequence) -> None:
        ids, params = sequence.token_ids, sequence.request.sampling
        self._set_fields(slot, sequence)
        parameters = RowParameters(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            frequency_penalty=params.frequency_penalty,
            presence_penalty=params.presence_penalty,
            seed=sequence.seed,
        )
        prompt, answer = ids[: sequence.answer_start], ids[sequence.answer_start :]
        masked = sequence.matcher is not None
        self._sampler.set_row(slot, parameters, prompt, answer, params.logit_bias, masked)
        self._rows[slot] = _Row(
            sequence,
            sequence.preemptions,
            len(ids),
            sequence.limit,
            blocks=0,
            pages=[0] * len(sequence.windows),
            used=self._clock,
        )
        self._slots[sequence.sequence_id] = slot

    def _set_fields(self, slot: int, sequence: Sequence) -> None:
        ids = sequence.token_ids
        self._state.set_row(slot, ids[-1], len(ids), sequence.limit, not sequence.request.ignore_eog)
