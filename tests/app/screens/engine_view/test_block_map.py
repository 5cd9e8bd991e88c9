"""How blocks become dots."""

from array import array
from random import Random

import numpy as np
import pytest

from app.screens.engine_view.block_map import BlockMap, lay_out, zoom_steps
from app.screens.engine_view.kv_map import map_dots
from app.screens.engine_view.pixels import CHAT, FREE, KEPT, NONE, OTHER, SHARED
from engine import KVHolding, KVPool


def pool(blocks, *tables, kept=(), window=0):
    used = bytearray(blocks + 1)
    for block in (*kept, *(b for table in tables for b in table)):
        used[block] = 1
    holdings = tuple(KVHolding(10 + n, array("i", t).tobytes()) for n, t in enumerate(tables))
    return KVPool("m", window, 16, 1000, bytes(used), holdings, 0, 0)


@pytest.mark.parametrize("blocks", [1, 7, 600, 4096, 262_144])
@pytest.mark.parametrize(("width", "rows"), [(78, 20), (58, 8), (1, 2), (198, 80)])
def test_all_blocks_have_a_dot_and_no_dot_is_wasted(blocks, width, rows):
    layout = lay_out(blocks, width, rows, 0, 1)
    assert layout.first_row == 0 and layout.per_dot * width * rows >= blocks
    assert layout.per_dot == 1 or (layout.per_dot - 1) * width * rows < blocks
    for block in {1, blocks, blocks // 2 + 1}:
        row, column = layout.dot_of(block)
        assert 0 <= row < rows and 0 <= column < width
        assert layout.block_at(row, column) <= block < layout.block_at(row, column) + layout.per_dot


@pytest.mark.parametrize("blocks", [601, 4096, 262_144])
def test_zooming_in_ends_at_a_block_a_dot_and_keeps_the_cursor_in_sight(blocks):
    steps, before = zoom_steps(blocks, 78, 6), 10**9
    for zoom in range(steps + 1):
        for cursor in (1, blocks // 3, blocks):
            layout = lay_out(blocks, 78, 6, zoom, cursor)
            row, _ = layout.dot_of(cursor)
            assert 0 <= row < 6
        assert layout.per_dot < before
        before = layout.per_dot
    assert before == 1


def test_dots_are_coloured_by_chat_hatched_where_shared_and_told_from_kept_and_free():
    blocks = BlockMap(pool(12, [1, 2, 3, 4, 5], [1, 2, 3, 4, 8], [10], kept=[9]))
    dots = map_dots(blocks, lay_out(12, 5, 4, 0, 1), {10: 0, 11: 9})
    assert dots.tolist() == [
        [SHARED, CHAT, SHARED, CHAT, CHAT],
        [FREE, FREE, CHAT + 1, KEPT, OTHER],
        [FREE, FREE, NONE, NONE, NONE],
        [NONE] * 5,
    ]


def test_a_dot_of_several_blocks_has_the_colour_of_the_first_that_is_held():
    blocks = BlockMap(pool(10, [3, 6], [4, 7], kept=[1, 9]))
    layout = lay_out(10, 5, 1, 0, 1)
    assert layout.per_dot == 2
    assert map_dots(blocks, layout, {10: 0, 11: 1}).tolist() == [[KEPT, CHAT, CHAT, CHAT + 1, KEPT]]


def test_the_cursor_learns_who_holds_what():
    blocks = BlockMap(pool(12, [1, 2, 3], [1, 2, 8], kept=[9]))
    assert dict(blocks.held_by(1, 3)) == {10: 3, 11: 2}
    assert blocks.counts(1, 9) == (2, 1, 4)
    assert blocks.owner_of(4, 4) is None and blocks.owner_of(4, 5) == 11
    assert blocks.place_of(11, 8) == 2 and blocks.place_of(11, 3) is None
    assert [blocks.next_owner(block) for block in (0, 1, 8, 12)] == [1, 8, 1, 1]
    assert BlockMap(pool(12)).next_owner(3) is None


@pytest.mark.parametrize("seed", range(3))
def test_dots_and_counts_agree_whatever_is_held(seed):
    random = Random(seed)
    size = random.randint(50, 3000)
    tables = [random.sample(range(1, size + 1), random.randint(1, size // 3)) for _ in range(5)]
    blocks = BlockMap(pool(size, *tables, kept=random.sample(range(1, size + 1), size // 4)))
    layout = lay_out(size, 37, 6, random.randint(0, 2), random.randint(1, size))
    owner, shared, used = blocks.dots(layout)
    for index in range(len(owner)):
        first = layout.block_at(*divmod(index, layout.width))
        count = min(layout.per_dot, size - first + 1)
        held = blocks.owner_of(first, count)
        assert (blocks.sequences[owner[index]] if owner[index] >= 0 else None) == held
        shared_blocks, kept, free = blocks.counts(first, count)
        assert used[index] == (free < count)
        assert shared[index] == (2 * shared_blocks > count - kept - free)
    assert np.count_nonzero(used) > 0
