"""The sampler on the device: the distribution and the draw of `kernels.sampling`, no host in between.

Four launches, whatever the rows ask for: maxima and sums of groups of tokens, the draw among the tokens
that they lead to, and for rows that this leaves open two that read all tokens once more.
"""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from kernels.sampler_bins import weigh_tokens
from kernels.sampler_draw import BOUNDS, choose_tokens
from kernels.sampler_logits import group_statistics
from kernels.sampler_search import search_tokens
from kernels.sampler_state import SamplerState


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
    """Bins that a wide row's logits are sorted into; 32 at least."""
    bin_tile: int = 512
    """Tokens that a program weighs in one step."""
    list_tile: int = 1024
    """Tokens that a program looks through for those of a few bins in one step."""
    tried_tile: int = 256
    """The same where it adds up what comes before several tokens; not the size of `bin_tile`, see
    `kernels.sampler_bins`."""
    bin_programs: int = 1024
    """Programs that the rows of a batch share for that, with 4 a row at least."""
    list_programs: int = 256
    """The same for the lists."""
    bin_warps: int = 4
    list_warps: int = 8
    list_registers: int = 128
    """Of a thread, at most, up to compute capability 9: two programs share a multiprocessor then."""


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
    splits, count, vocab = logits.shape
    groups = triton.cdiv(vocab, shape.group)
    padded = triton.next_power_of_2(groups)
    device = logits.device
    statistics = torch.empty((3, count, groups), dtype=torch.float32, device=device)
    group_list = torch.empty((count, padded), dtype=torch.int32, device=device)
    found = torch.empty((count, shape.capacity), dtype=torch.int64, device=device)
    entries = max(2 * shape.bins + 8, padded)
    tables = torch.empty((count, entries), dtype=torch.int64, device=device)
    bounds = torch.empty((count, BOUNDS.value), dtype=torch.float32, device=device)
    results = torch.empty((2, count), dtype=torch.int32, device=device)
    row = (logits, logits.stride(0), slots, state.rows, state.counts, state.bias)
    kind = (vocab, logits.stride(1), splits, False)
    tile = group_tile(shape.group)
    group_statistics[(triton.cdiv(groups, tile), count)](
        *row,
        statistics,
        statistics.stride(0),
        SHAPE=kind,
        GROUPS=groups,
        GROUP=shape.group,
        TILE=tile,
        MOST=shape.most,
        num_warps=4,
    )
    choose_tokens[(count,)](
        *row,
        lengths,
        statistics,
        statistics.stride(0),
        group_list,
        found,
        tables,
        entries,
        results,
        bounds,
        POSITION_STRIDE=lengths.stride(0),
        SHAPE=kind,
        SIZES=(groups, shape.group, padded, shape.small, shape.capacity, shape.most, shape.bins),
        num_warps=8,
    )
    _search((*row, bounds, tables, entries, found), lengths, statistics, results, kind, shape)
    return results[0], results[1]


def _search(
    known: tuple[Tensor | int, ...],
    lengths: Tensor,
    statistics: Tensor,
    results: Tensor,
    kind: tuple[int, int, int, bool],
    shape: SamplerShape,
) -> None:
    """The launches for rows that are left open; a few microseconds when there is none."""
    vocab, count, groups = kind[0], results.shape[1], statistics.shape[2]
    whole = triton.next_power_of_2(vocab)
    bin_tile, list_tile = min(shape.bin_tile, whole), min(shape.list_tile, whole)
    tried_tile = min(shape.tried_tile, whole)
    bin_programs = min(triton.cdiv(vocab, bin_tile), max(4, shape.bin_programs // count))
    list_programs = min(triton.cdiv(vocab, list_tile), max(4, shape.list_programs // count))
    listed = torch.empty((count, 3, shape.capacity), dtype=torch.int64, device=statistics.device)
    weigh_tokens[(bin_programs, count)](
        *known,
        SHAPE=kind,
        SIZES=(shape.bins, bin_tile, shape.group, shape.capacity, tried_tile),
        num_warps=shape.bin_warps,
    )
    search_tokens[(list_programs, count)](
        *known,
        lengths,
        statistics,
        statistics.stride(0),
        listed,
        results,
        POSITION_STRIDE=lengths.stride(0),
        SHAPE=kind,
        SIZES=(
            *(shape.bins, shape.capacity, list_tile, min(512, whole)),
            *(groups, shape.group, triton.next_power_of_2(groups)),
        ),
        num_warps=shape.list_warps,
        **_register_limit(results, shape),
    )


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
