"""Takes the close look at the engine, on its thread, after somebody has asked for it.

Numbers of blocks cross threads as bytes. Tables only grow, so of each only what is new since the last
time is converted; the rest are copies of memory.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence

from engine.api.detail import EngineDetail, KVHolding, KVPool, SequenceDetail
from engine.api.stats import EngineStats
from engine.core.model_loader import ResidentModel
from engine.core.resident_models import ResidentModels
from engine.scheduler import sequence as scheduled


class _Numbers:
    """A list that only grows, as bytes."""

    def __init__(self) -> None:
        self._list: Sequence[int] | None = None
        self._array = array("i")

    def read(self, numbers: Sequence[int], first: int = 0) -> bytes:
        """The numbers from the `first` on; another list, or a shorter one, is read anew."""
        if numbers is not self._list or len(numbers) < len(self._array):
            self._list, self._array = numbers, array("i")
        self._array += array("i", numbers[len(self._array) :])
        return self._array[first:].tobytes()


class DetailCollector:
    """`wanted` may be set by any thread; all else is the engine's."""

    def __init__(self, models: ResidentModels) -> None:
        self._models = models
        self._numbers: dict[tuple[int, int], _Numbers] = {}
        """By sequence and pool of its model."""
        self.wanted = False
        self.latest: EngineDetail | None = None

    def take(self, stats: EngineStats, sequences: Iterable[scheduled.Sequence]) -> None:
        """Take a look; `stats` are of the same moment."""
        self.wanted = False
        live = list(sequences)
        before, self._numbers = self._numbers, {}
        pools = [
            pool
            for model in self._models
            for pool in self._pools(model, [s for s in live if s.model == model.key], before)
        ]
        self.latest = EngineDetail(stats, tuple(pools), tuple(_sequence(s) for s in live))

    def _pools(
        self,
        model: ResidentModel,
        sequences: Sequence[scheduled.Sequence],
        before: dict[tuple[int, int], _Numbers],
    ) -> Iterator[KVPool]:
        blocks = model.blocks
        kinds = [(0, blocks.used), *((kind.shape.tokens, kind.used_pages) for kind in blocks.windows.kinds)]
        for index, (window, used) in enumerate(kinds):
            holdings = []
            for sequence in sequences:
                if sequence.block_table:
                    key = sequence.sequence_id, index
                    numbers = self._numbers[key] = before.get(key) or _Numbers()
                    holdings.append(KVHolding(sequence.sequence_id, _held(sequence, index, numbers)))
            host = blocks.hosts[index]
            yield KVPool(
                model.name,
                window,
                blocks.block_size,
                blocks.pool_bytes[index],
                bytes(used),
                tuple(holdings),
                host.capacity,
                host.used,
                tuple(blocks.index.owners.names),
                blocks.index.owners.tobytes(len(used)) if not index else b"",
            )


def _held(sequence: scheduled.Sequence, index: int, numbers: _Numbers) -> bytes:
    """The blocks of a sequence, or the pages that its window number `index` holds."""
    if not index:
        return numbers.read(sequence.block_table)
    window = sequence.windows[index - 1]
    return numbers.read(window.pages, window.first)


def _sequence(sequence: scheduled.Sequence) -> SequenceDetail:
    admitted, first, arrival = sequence.admitted_at, sequence.first_token_at, sequence.arrival
    return SequenceDetail(
        sequence.sequence_id,
        sequence.cached_tokens,
        sequence.saved_ms,
        sequence.preemptions,
        None if admitted is None else (admitted - arrival) * 1e3,
        None if first is None else (first - arrival) * 1e3,
    )
