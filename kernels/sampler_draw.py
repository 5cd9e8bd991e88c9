"""The draw of each row from its few best tokens, without sorting the vocabulary.

Every group of neighbouring tokens has its maximum. The value that at least `need` maxima reach is
reached by at least `need` tokens, all of them in those groups, so the best tokens are found by
looking into these groups alone. Rows whose answer lies deeper are left to `kernels.sampler_search`.
"""

import triton
import triton.language as tl

from kernels.sampler_logits import LOWEST, UNIT, edited_logits, logit_of, ordered, token_of, weigh
from kernels.sampler_state import FIELDS, MIN_P, TEMPERATURE, TOP_K, TOP_P, float_field, uniform


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
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    PADDED: tl.constexpr,
    CAPACITY: tl.constexpr,
) -> tl.tensor:
    """Write the tokens with logits >= `least` to `found`, up to CAPACITY; → how many there are."""
    chosen = maxima >= least
    order = tl.cumsum(chosen.to(tl.int32), axis=0) - 1
    num_groups = tl.sum(chosen.to(tl.int32), axis=0)
    tl.debug_barrier()
    tl.store(group_list + order, tl.arange(0, PADDED), mask=chosen)
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
    entries there are, and a fraction of its code.
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


@triton.jit
def _settle(
    found: tl.tensor,
    count: tl.tensor,
    best: tl.tensor,
    temperature: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    min_p: tl.tensor,
    drawn: tl.tensor,
    full: tl.tensor,
    complete: tl.tensor,
    all_in: tl.tensor,
    SIZE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Draw from the `count` best tokens → (id, whether that is the draw from the whole row).

    `top_k` 0 keeps all; `full` is the row's mass. `complete`: no token beyond these is kept;
    `all_in`: none beyond these has a weight.
    """
    rank = tl.arange(0, SIZE)
    packed = sort_found(found, count, SIZE)
    available = tl.minimum(count, tl.where(top_k > 0, top_k, count))
    offered = rank < available
    weight = tl.where(offered, weigh(logit_of(packed), best, temperature), 0.0)
    mass = (weight * UNIT).to(tl.int64)
    cumulative = tl.cumsum(mass, axis=0)
    found_mass = tl.sum(mass, axis=0)
    closed = complete | (top_k > 0)
    total = tl.where(all_in | (top_k > 0), found_mass, tl.maximum(full, found_mass))
    limit = top_p.to(tl.float64) * total.to(tl.float64)
    keep = offered & (mass > 0) & ((cumulative - mass).to(tl.float64) < limit) & (weight >= min_p)
    keep = keep | (rank == 0)
    kept = tl.sum(keep.to(tl.int32), axis=0)
    kept_mass = tl.sum(tl.where(keep, mass, 0), axis=0)
    closed = closed | (kept < available)
    kept_mass = tl.where(closed, kept_mass, total)
    target = (drawn * kept_mass.to(tl.float64)).to(tl.int64)
    settled = closed | ((top_p >= 1) & (min_p <= 0) & (target < found_mass))
    index = tl.sum((keep & (cumulative <= target)).to(tl.int32), axis=0)
    index = tl.minimum(index, kept - 1)
    token = tl.sum(tl.where(rank == index, token_of(packed), 0), axis=0)
    return token, settled


@triton.jit
def _draw(
    source: tl.tuple,
    maxima: tl.tensor,
    best: tl.tensor,
    sums: tl.tensor,
    position: tl.tensor,
    group_list: tl.tensor,
    found: tl.tensor,
    SHAPE: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    PADDED: tl.constexpr,
    SMALL: tl.constexpr,
    CAPACITY: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """→ (id, 0), or (0, 1) where more than CAPACITY tokens would have to be looked at.

    Without a top-k first few candidates are tried: most rows put nearly all weight on them.
    """
    rows = source[4]
    slot = source[3]
    temperature = float_field(rows, slot, TEMPERATURE)
    top_p = float_field(rows, slot, TOP_P)
    min_p = float_field(rows, slot, MIN_P)
    top_k = _top_k(rows, slot, SHAPE[0])
    drawn = uniform(rows, slot, position)
    floor = LOWEST + tl.zeros_like(best)
    need = top_k
    most = top_k
    full = tl.zeros_like(top_k).to(tl.int64)
    if top_k == 0:
        need = need + SMALL // 3
        most = most + CAPACITY // 2
        full = (tl.sum(weigh(maxima, best, temperature) * sums, axis=0) * UNIT).to(tl.int64)
        if min_p > 0:
            cut = best + temperature * (tl.log(min_p) - 1e-3) - 1e-5 * tl.abs(best)
            floor = tl.maximum(floor, cut)
    token = tl.zeros_like(top_k)
    left = top_k <= CAPACITY // 2
    settled = left & (top_k < 0)
    while left:
        least = threshold(maxima, best, floor, need)
        count = collect(source, maxima, least, group_list, found, SHAPE, GROUP, TILE, PADDED, CAPACITY)
        all_in = least <= LOWEST
        if ((count >= top_k) | all_in) & (count <= CAPACITY):
            complete = least <= floor
            if count <= SMALL:
                token, settled = _settle(
                    found, count, best, temperature, top_k, top_p, min_p, drawn, full, complete, all_in, SMALL
                )
            else:
                token, settled = _settle(
                    found,
                    count,
                    best,
                    temperature,
                    top_k,
                    top_p,
                    min_p,
                    drawn,
                    full,
                    complete,
                    all_in,
                    CAPACITY,
                )
        left = (need < most) & (settled == 0) & (count <= CAPACITY)
        need = most
    return token, 1 - settled.to(tl.int32)


@triton.jit
def _top_k(rows: tl.tensor, slot: tl.tensor, VOCAB: tl.constexpr) -> tl.tensor:
    """Tokens to keep, 0 for all."""
    top_k = tl.load(rows + slot * FIELDS + TOP_K)
    return tl.where((top_k < 0) | (top_k >= VOCAB), 0, top_k)


@triton.jit
def choose_tokens(
    logits: tl.tensor,
    split_stride: tl.tensor,
    slots: tl.tensor,
    rows: tl.tensor,
    counts: tl.tensor,
    bias: tl.tensor,
    positions: tl.tensor,
    group_max: tl.tensor,
    group_sum: tl.tensor,
    group_list: tl.tensor,
    found: tl.tensor,
    sampled: tl.tensor,
    finite: tl.tensor,
    pending: tl.tensor,
    POSITION_STRIDE: tl.constexpr,
    SHAPE: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    PADDED: tl.constexpr,
    SMALL: tl.constexpr,
    CAPACITY: tl.constexpr,
) -> None:
    """Grid (R,): the id of each row, or pending = 1 where its few best tokens do not decide.

    Reads 8 bytes per group, and of the groups with a candidate what `group_statistics` read.
    """
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    token = tl.zeros_like(row)
    left = tl.zeros_like(row)
    is_finite = left + 1
    if slot >= 0:
        group = tl.arange(0, PADDED)
        maxima = tl.load(group_max + row * GROUPS + group, mask=group < GROUPS, other=float("-inf"))
        best = tl.max(maxima, axis=0)
        bad = tl.sum((maxima != maxima).to(tl.int32), axis=0)
        is_finite = ((bad == 0) & (best >= LOWEST)).to(tl.int32)
        source = (logits, split_stride, row, slot, rows, counts, bias)
        if is_finite != 0:
            if (float_field(rows, slot, TEMPERATURE) <= 0) | (_top_k(rows, slot, SHAPE[0]) == 1):
                home = tl.argmax(maxima, axis=0)
                column = home * GROUP + tl.arange(0, GROUP)
                token = home * GROUP + tl.argmax(
                    edited_logits(source, column, column < SHAPE[0], SHAPE), axis=0
                )
            else:
                sums = tl.load(group_sum + row * GROUPS + group, mask=group < GROUPS, other=0.0)
                position = tl.load(positions + slot * POSITION_STRIDE)
                token, left = _draw(
                    source,
                    maxima,
                    best,
                    sums,
                    position,
                    group_list + row * PADDED,
                    found + row * CAPACITY,
                    SHAPE,
                    GROUP,
                    TILE,
                    PADDED,
                    SMALL,
                    CAPACITY,
                )
    tl.store(sampled + row, token)
    tl.store(finite + row, is_finite)
    tl.store(pending + row, left)
