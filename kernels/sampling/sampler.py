"""The sampler on the device: distribution and draw of `kernels.reference.sampler`, no host in between.

Four launches, whatever the rows ask for: maxima and sums of groups of tokens, the draw among the tokens
that they lead to, and for rows that this leaves open two that read all tokens once more.
"""

from dataclasses import dataclass
from functools import partial

import torch
import triton
from torch import Tensor

from kernels.cuda.early import early
from kernels.sampling.draw import BOUNDS, choose_tokens
from kernels.sampling.draw_by_id import TRIES
from kernels.sampling.histogram import weigh_tokens
from kernels.sampling.logits import group_statistics
from kernels.sampling.search import search_tokens
from kernels.state.sampler_state import SamplerState


@dataclass(frozen=True, slots=True)
class SamplerShape:
    """Sizes of the candidate search; powers of two. They change its speed, never its result."""

    group: int = 128
    """Neighbouring tokens with one maximum."""
    small: int = 128
    """Candidates sorted in the usual case."""
    capacity: int = 1024
    """Candidates sorted at most, and tokens of a few bins listed."""
    most: int = 256
    """Largest top-k for which candidates are tried."""
    bins: int = 1024
    """Bins that the logits of a row that keeps many tokens are sorted into; 32 at least."""
    bin_tile: int = 512
    """Tokens that a program weighs in one step."""
    list_tile: int = 1024
    """Tokens that a program looks through for those of a few bins in one step."""
    rejection_tile: int = 256
    """The same where it adds up what comes before several tokens; not the size of `bin_tile`, see
    `kernels.sampling.histogram`."""
    bin_programs: int = 1024
    """Programs that the rows of a batch share for that, with 4 a row at least."""
    list_programs: int = 256
    """The same for the lists."""
    bin_warps: int = 4
    list_warps: int = 8
    list_registers: int = 128
    """Of a thread, at most, up to compute capability 9: two programs share a multiprocessor then."""

    def __post_init__(self) -> None:
        # Bins are added up in 32 runs; tokens drawn at once stand where candidates do.
        assert self.bins >= 32 and self.capacity >= TRIES.value, (self.bins, self.capacity)


DEFAULT_SHAPE = SamplerShape()
_ALL_REGISTERS = 255


def sample(
    logits: Tensor,
    state: SamplerState,
    slots: Tensor,
    lengths: Tensor,
    shape: SamplerShape = DEFAULT_SHAPE,
) -> tuple[Tensor, Tensor]:
    """Draw one token for each row.

    logits float32 [splits, R, vocab], added up over the splits (the last two dimensions may be
    strided by rows); slots int32 [R], row of the state, -1 for padding; lengths int32, by slot, the
    number of known tokens, which with the row's seed gives its random number. May be a strided view.

    → (ids int32 [R], finite int32 [R]). Rows with a NaN or infinite logit, or whose every token is
    forbidden, are reported as not finite; their id and that of padding is 0.
    """
    row = (logits, logits.stride(0), slots, state.rows, state.counts, state.bias)
    draw = _Draw(row, logits, lengths, shape)
    for launch in (draw.group, draw.choose, draw.weigh, draw.search):
        launch()
    return draw.results[0], draw.results[1]


class _Draw:
    """Buffers and launches of one call."""

    def __init__(
        self, row: tuple[Tensor | int, ...], logits: Tensor, lengths: Tensor, shape: SamplerShape
    ) -> None:
        splits, self.count, self.vocab = logits.shape
        self.row, self.lengths, self.shape = row, lengths, shape
        self.groups = triton.cdiv(self.vocab, shape.group)
        self.padded = triton.next_power_of_2(self.groups)
        self.kind = (self.vocab, logits.stride(1), splits)
        self.entries = max(2 * shape.bins + 8, self.padded)
        empty = partial(torch.empty, device=logits.device)
        self.statistics = empty((3, self.count, self.groups), dtype=torch.float32)
        self.group_list = empty((self.count, self.padded), dtype=torch.int32)
        self.found = empty((self.count, shape.capacity), dtype=torch.int64)
        self.tables = empty((self.count, self.entries), dtype=torch.int64)
        self.listed = empty((self.count, 3, shape.capacity), dtype=torch.int64)
        self.bounds = empty((self.count, BOUNDS.value), dtype=torch.float32)
        self.results = empty((2, self.count), dtype=torch.int32)

    def group(self) -> None:
        tile = group_tile(self.shape.group)
        group_statistics[(triton.cdiv(self.groups, tile), self.count)](
            *self.row,
            self.statistics,
            self.statistics.stride(0),
            SHAPE=self.kind,
            GROUPS=self.groups,
            GROUP=self.shape.group,
            TILE=tile,
            MOST=self.shape.most,
            num_warps=4,
            **early(self.results),
        )

    def choose(self) -> None:
        shape = self.shape
        choose_tokens[(self.count,)](
            *self.row,
            self.lengths,
            self.statistics,
            self.statistics.stride(0),
            self.group_list,
            self.found,
            self.tables,
            self.entries,
            self.results,
            self.bounds,
            POSITION_STRIDE=self.lengths.stride(0),
            SHAPE=self.kind,
            SIZES=(
                *(self.groups, shape.group, self.padded, shape.small, shape.capacity, shape.most),
                shape.bins,
            ),
            num_warps=8,
            **early(self.results),
        )

    def weigh(self) -> None:
        """A microsecond when no row is left open."""
        shape = self.shape
        tile, rejection_tile = self._within(shape.bin_tile), self._within(shape.rejection_tile)
        weigh_tokens[(self._programs(tile, shape.bin_programs), self.count)](
            *self._known(),
            SHAPE=self.kind,
            SIZES=(shape.bins, tile, shape.group, shape.capacity, rejection_tile),
            num_warps=shape.bin_warps,
            **early(self.results),
        )

    def search(self) -> None:
        """A microsecond when no row is left open."""
        shape = self.shape
        tile = self._within(shape.list_tile)
        search_tokens[(self._programs(tile, shape.list_programs), self.count)](
            *self._known(),
            self.lengths,
            self.statistics,
            self.statistics.stride(0),
            self.listed,
            self.results,
            POSITION_STRIDE=self.lengths.stride(0),
            SHAPE=self.kind,
            SIZES=(
                *(shape.bins, shape.capacity, tile, self._within(512)),
                *(self.groups, shape.group, self.padded),
            ),
            num_warps=shape.list_warps,
            **_register_limit(self.results, shape),
            **early(self.results),
        )

    def _known(self) -> tuple[Tensor | int, ...]:
        """What a search is told."""
        return (*self.row, self.bounds, self.tables, self.entries, self.found)

    def _within(self, tile: int) -> int:
        return min(tile, triton.next_power_of_2(self.vocab))

    def _programs(self, tile: int, shared: int) -> int:
        """Programs of a row."""
        return min(triton.cdiv(self.vocab, tile), max(4, shared // self.count))


def _register_limit(on_device: Tensor, shape: SamplerShape) -> dict[str, int]:
    """An option that compilers for other makers' GPUs do not know."""
    if not on_device.is_cuda or torch.version.hip:
        return {}
    major, _ = torch.cuda.get_device_capability(on_device.device)
    # Those for later GPUs would keep values in memory, even without a limit.
    return {"maxnreg": shape.list_registers if major < 10 else _ALL_REGISTERS}


def group_tile(group: int) -> int:
    """Groups per program: 1,024 tokens, so that one row keeps every multiprocessor busy."""
    return max(1, 1024 // group)
