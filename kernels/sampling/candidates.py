"""The best tokens of a row, found through the maxima of groups, and sorted.

The value that at least `need` maxima reach is reached by at least `need` tokens, all of them in those
groups, so the best tokens are found by looking into these groups alone.

SIZES is (groups, tokens of a group, groups padded to a power of two, candidates sorted in the usual
case, candidates sorted at most, largest top-k tried here, bins of the search).
"""

import triton
import triton.language as tl

from kernels.sampling.logits import edited_logits, ordered


@triton.jit
def threshold(maxima: tl.tensor, best: tl.tensor, floor: tl.tensor, need: tl.tensor) -> tl.tensor:
    """A value that at least `need` maxima reach, and not many more; `floor` if fewer reach that."""
    reaching = tl.sum((maxima >= floor).to(tl.int32), axis=0)
    low = floor
    if reaching > need:
        low = tl.min(tl.where(maxima >= floor, maxima, best), axis=0)
        high = best
        at_best = tl.sum((maxima >= best).to(tl.int32), axis=0)
        if at_best >= need:
            low = best
        enough = need + need // 4
        going = (reaching > enough) & (low < high)
        while going:
            middle = low * 0.5 + high * 0.5
            count = tl.sum((maxima >= middle).to(tl.int32), axis=0)
            going = (middle > low) & (middle < high)
            if count >= need:
                low = middle
                going = going & (count > enough)
            else:
                high = middle
    return low


@triton.jit
def collect(
    source: tl.tuple,
    maxima: tl.tensor,
    least: tl.tensor,
    group_list: tl.tensor,
    found: tl.tensor,
    SHAPE: tl.constexpr,
    SIZES: tl.constexpr,
) -> tl.tensor:
    """Write the tokens with logits >= `least` to `found`, up to CAPACITY; → how many there are."""
    GROUP: tl.constexpr = SIZES[1]
    TILE: tl.constexpr = min(32, SIZES[2])
    CAPACITY: tl.constexpr = SIZES[4]
    chosen = maxima >= least
    order = tl.cumsum(chosen.to(tl.int32), axis=0) - 1
    num_groups = tl.sum(chosen.to(tl.int32), axis=0)
    tl.debug_barrier()
    tl.store(group_list + order, tl.arange(0, SIZES[2]), mask=chosen)
    tl.debug_barrier()
    count = 0
    for first in range(0, num_groups, TILE):
        index = first + tl.arange(0, TILE)
        group = tl.load(group_list + index, mask=index < num_groups, other=0)
        column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        inside = (column < SHAPE[0]) & (index < num_groups)[:, None]
        x = edited_logits(source, column, inside, SHAPE)
        is_in = (x >= least).to(tl.int32)
        of_group = tl.sum(is_in, axis=1)
        before = tl.cumsum(of_group, axis=0) - of_group
        place = count + before[:, None] + tl.cumsum(is_in, axis=1) - 1
        tl.store(found + place, ordered(x, column), mask=(is_in != 0) & (place < CAPACITY))
        count += tl.sum(of_group, axis=0)
    tl.debug_barrier()
    return count


@triton.jit
def sort_found(found: tl.tensor, count: tl.tensor, SIZE: tl.constexpr) -> tl.tensor:
    """Sort the first `count` <= SIZE entries, all different, downwards; → them, padded with the least.

    Each is put where the number of larger ones says: fewer steps than a sorting network for the few
    entries there are, and a fraction of its code. Compared with 32 others at once.
    """
    STEP: tl.constexpr = min(SIZE, 32)
    index = tl.arange(0, SIZE)
    own = tl.load(found + index, mask=index < count, other=-(1 << 63))
    larger = tl.zeros((SIZE,), tl.int32)
    for first in range(0, count, STEP):
        place = first + tl.arange(0, STEP)
        other = tl.load(found + place, mask=place < count, other=-(1 << 63))
        larger += tl.sum((other[:, None] > own[None, :]).to(tl.int32), axis=0)
    tl.debug_barrier()
    tl.store(found + larger, own, mask=index < count)
    tl.debug_barrier()
    return tl.load(found + index, mask=index < count, other=-(1 << 63))
