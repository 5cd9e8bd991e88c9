"""A pass on its way: whose its sampled rows are, and what the device's report says of them."""

from dataclasses import dataclass

from torch import Tensor

from engine.device.stream import Mark
from engine.runner.cuda_graph import PassSize
from engine.runner.logits.logprobs import read_logprobs
from engine.runner.sampler import Sampled, not_finite_cause, verify
from engine.scheduler.plan import ModelBatch
from engine.scheduler.sequence import Sequence
from kernels.state.decode_state import NOT_FINITE


@dataclass(frozen=True, slots=True)
class InFlightStep:
    """A launched tick."""

    rows: list[tuple[int, Sequence, list[int]]]
    """(sampled row, its sequence, the draft tokens whose rows follow)."""
    tick: int
    done: Mark
    apart: "ChosenApart | None" = None


@dataclass(frozen=True, slots=True)
class ChosenApart:
    """What the rows of a tick do not report, where their tokens were chosen apart."""

    rows: list[tuple[int, Sequence, list[int]]]
    """As in `InFlightStep`."""
    held: set[int]
    """Sequences, by id, that had no mask in time and were not sampled."""
    asking: list[Sequence]
    """Those that ask for log-probabilities."""
    logprobs: Tensor | None
    """Theirs as `logprobs_of` tells them, on the host."""


def sampled_rows(batch: ModelBatch, size: PassSize) -> list[tuple[int, Sequence, list[int]]]:
    """The sampled rows of a pass: decode rows, each before those of its draft tokens, and whole prompts."""
    rows: list[tuple[int, Sequence, list[int]]] = []
    row = 0
    for sequence in batch.decode:
        draft = batch.drafts.get(sequence.sequence_id, [])
        rows.append((row, sequence, draft))
        row += 1 + len(draft)
    for index, chunk in enumerate(batch.prefill):
        if chunk.completes:
            rows.append((size.num_decode + index, chunk.sequence, []))
    return rows


def read_report(step: InFlightStep, report: list[int]) -> tuple[Sampled, list[Sequence]]:
    """What a tick gave, and the sequences whose rows on the device are one token further.

    report: of each sampled row an id, `ENDED` or `NOT_FINITE`. A row that had ended gives nothing;
    those of draft tokens never end.
    """
    result = Sampled({}, {})
    if step.apart is not None:
        result.held = step.apart.held
        if step.apart.logprobs is not None:
            result.logprobs = read_logprobs(step.apart.asking, step.apart.logprobs)
    followed = []
    for row, sequence, draft in step.rows:
        if draft:
            outcomes = [_outcome(sequence, given) for given in report[row : row + 1 + len(draft)]]
            verify(sequence.sequence_id, draft, outcomes, result)
        elif report[row] >= 0:
            result.ids[sequence.sequence_id] = report[row]
            followed.append(sequence)
        elif report[row] == NOT_FINITE:
            result.failed[sequence.sequence_id] = not_finite_cause(sequence)
    return result, followed


def _outcome(sequence: Sequence, given: int) -> int | str:
    return given if given >= 0 else not_finite_cause(sequence)
