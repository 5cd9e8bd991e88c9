from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.api.errors import InvariantError
from engine.cache.block_manager import BlockManager
from engine.cache.budget import KVBudget
from tests.support.block_fuzz import BlockFuzzer

SIZE = 4


def manager(num_blocks=17, budget=None, block_bytes=10, salt=b""):
    budget = budget or KVBudget((num_blocks - 1) * block_bytes)
    return BlockManager(num_blocks, SIZE, block_bytes, budget, salt)


def fill(blocks, token_ids):
    """A table with all of `token_ids` computed."""
    table = blocks.match(token_ids)[0]
    blocks.share(table)
    table += blocks.allocate(blocks.blocks_for(len(token_ids)) - len(table), table[-1] if table else None)
    blocks.commit_full(table, token_ids, len(token_ids))
    return table


def test_scratch_block_is_never_handed_out():
    blocks = manager(9)
    assert sorted(blocks.allocate(8)) == list(range(1, 9))
    assert blocks.allocate(1) is None


def test_refused_allocation_changes_nothing():
    blocks = manager(9)
    blocks.release(fill(blocks, list(range(12))))
    assert blocks.allocate(9) is None
    assert (blocks.free, blocks.cached, blocks.held) == (5, 3, 0)


def test_released_full_blocks_are_hit_and_partial_ones_are_free():
    blocks = manager()
    table = fill(blocks, list(range(10)))
    first = table[:2]
    blocks.release(table)
    assert table == []
    assert (blocks.cached, blocks.held) == (2, 0)
    assert blocks.match([*range(10), 77])[0] == first
    assert blocks.match([*range(7), 99, 8])[0] == first[:1]


def test_at_least_one_token_is_left_to_compute():
    blocks = manager()
    table = fill(blocks, list(range(8)))
    assert blocks.match(list(range(8)))[0] == table[:1]
    assert blocks.match(list(range(9)))[0] == table


def test_hits_are_verified_by_token_ids(monkeypatch):
    class Collider(int):
        def __hash__(self):
            return 1

    blocks = manager()
    fill(blocks, [Collider(i) for i in range(8)])
    assert blocks.match([Collider(i + 50) for i in range(9)])[0] == []
    assert len(blocks.match([Collider(i) for i in range(9)])[0]) == 2


def test_same_block_after_another_prefix_is_no_hit():
    blocks = manager()
    fill(blocks, [1, 1, 1, 1, 5, 5, 5, 5])
    assert blocks.match([2, 2, 2, 2, 5, 5, 5, 5, 9])[0] == []
    fill(blocks, [2, 2, 2, 2])
    assert len(blocks.match([2, 2, 2, 2, 5, 5, 5, 5, 9])[0]) == 1


def test_salt_separates():
    blocks = manager(salt=b"short rope")
    table = fill(blocks, list(range(8)))
    assert blocks.match(list(range(9)), b"long rope")[0] == []
    assert blocks.match(list(range(9)), b"short rope")[0] == table


def test_generated_tokens_are_indexed_when_their_block_is_computed():
    blocks = manager()
    ids = list(range(6))
    table = fill(blocks, ids)
    assert len(blocks.match([*range(9)])[0]) == 1
    ids += [6, 7]
    blocks.commit_full(table, ids, 7)
    assert len(blocks.match([*range(9)])[0]) == 1
    blocks.commit_full(table, ids, 8)
    assert blocks.match([*range(9)])[0] == table


def test_a_second_copy_keeps_its_own_block_and_takes_over_after_the_first():
    blocks = manager()
    ids = list(range(8))
    one, two = blocks.allocate(2), blocks.allocate(2)
    blocks.commit_full(one, ids, 8)
    blocks.commit_full(two, ids, 8)
    first, second = list(one), list(two)
    assert not set(first) & set(second)
    assert blocks.match([*ids, 9])[0] == first
    blocks.release(one, discard=True)
    assert blocks.match([*ids, 9])[0] == second
    blocks.release(two)
    assert blocks.match([*ids, 9])[0] == second
    blocks.check([])


def test_discarded_blocks_are_forgotten_unless_another_table_holds_them():
    blocks = manager()
    table = fill(blocks, list(range(8)))
    other = table[:1]
    blocks.share(other)
    blocks.release(table, discard=True)
    assert blocks.match(list(range(9)))[0] == other
    assert blocks.cached == 0


def test_eviction_takes_the_least_recently_used_tail_first():
    blocks = manager(9)
    old, new = fill(blocks, [1] * 16), fill(blocks, [2] * 16)
    old_table, new_table = list(old), list(new)
    blocks.release(old)
    blocks.release(new)
    blocks.allocate(1)
    assert blocks.match([1] * 17)[0] == old_table[:3]
    assert blocks.match([2] * 17)[0] == new_table


def test_budget_evicts_the_oldest_of_any_manager():
    budget = KVBudget(100)
    a, b = manager(11, budget, 10), manager(6, budget, 20)
    a.release(fill(a, [1] * 20))
    table = fill(b, [2] * 8)
    b.release(table)
    assert (a.cached, b.cached, budget.used_bytes) == (5, 2, 90)
    assert a.allocate(3) is not None
    assert (a.cached, b.cached, budget.used_bytes) == (3, 2, 100)
    assert b.allocate(2) is not None
    assert (a.cached, b.cached) == (0, 1)
    assert b.allocate(3) is None
    budget.check()


def test_budget_eviction_does_not_depend_on_the_order_of_registration():
    budget = KVBudget(80)
    first, second = manager(11, budget), manager(11, budget)
    older, newer = fill(second, [2] * 16), fill(first, [1] * 16)
    second.release(older)
    first.release(newer)
    assert first.allocate(2) is not None
    assert (first.cached, second.cached) == (4, 2)


def test_capacity_is_bounded_by_the_budget():
    blocks = manager(101, KVBudget(55))
    assert blocks.capacity == 5
    assert blocks.allocate(6) is None
    assert len(blocks.allocate(5)) == 5


def test_new_sequences_lie_in_one_run_and_have_room_to_grow():
    blocks = manager(1001)
    tables = [blocks.allocate(10) for _ in range(4)]
    for _ in range(60):
        for table in tables:
            table += blocks.allocate(1, table[-1])
    for table in tables:
        assert table == list(range(table[0], table[0] + 70))


def test_shared_blocks_are_counted():
    blocks = manager()
    table = fill(blocks, list(range(6)))
    other = list(table)
    blocks.share(other)
    assert blocks.count_shared(table) == 2
    blocks.check([(table, []), (other, [])])
    blocks.release(other)
    assert blocks.count_shared(table) == 0
    blocks.check([(table, [])])


def test_wrong_use_is_found():
    blocks = manager()
    table = blocks.allocate(2)
    again = list(table)
    with pytest.raises(InvariantError, match="counted"):
        blocks.check([(table, []), (table, [])])
    blocks.release(table)
    with pytest.raises(InvariantError, match="more often"):
        blocks.release(again)
    with pytest.raises(InvariantError, match="no content"):
        blocks.share(again)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda blocks, table: blocks._refs.__setitem__(16, 1), "block 16: counted 1 times, in 0"),
        (lambda blocks, table: table.append(16), "block 16: counted 0 times, in 1"),
        (lambda blocks, table: table.append(0), "scratch block 0"),
        (lambda blocks, table: blocks._cached.__setitem__(16, 0), "free .* cached .* held is not"),
        (lambda blocks, table: blocks._nodes.__setitem__(16, blocks._nodes[table[0]]), "16 is not where"),
        (lambda blocks, table: blocks._nodes[table[0]].blocks.clear(), "is not where its tokens"),
        (lambda blocks, table: blocks._nodes.__setitem__(next(iter(blocks._cached)), None), "no hit can"),
        (lambda blocks, table: blocks._runs._end_of.__setitem__(table[0], table[0] + 1), "runs overlap"),
    ],
)
def test_every_kind_of_disorder_is_found(damage, words):
    blocks = manager()
    blocks.release(fill(blocks, list(range(100, 109))))
    table = fill(blocks, list(range(8)))
    blocks.check([(table, [])])
    damage(blocks, table)
    with pytest.raises(InvariantError, match=words):
        blocks.check([(table, [])])


def test_close_gives_everything_back():
    budget = KVBudget(1000)
    blocks = manager(budget=budget)
    table = fill(blocks, list(range(9)))
    with pytest.raises(InvariantError, match="held"):
        blocks.close()
    blocks.release(table)
    blocks.close()
    assert budget.used_bytes == 0


@pytest.mark.parametrize("seed", range(5))
def test_ten_thousand_random_operations(seed):
    fuzzer = BlockFuzzer(Random(seed))
    for i in range(2000):
        fuzzer.step()
        if i % 20 == 0:
            fuzzer.check()
    assert fuzzer.hits
    assert fuzzer.refusals


class BlockMachine(RuleBasedStateMachine):
    @initialize(random=st.randoms(use_true_random=False), num_blocks=st.integers(4, 40))
    def begin(self, random, num_blocks):
        self.fuzzer = BlockFuzzer(random, num_blocks)

    def pick(self, index):
        return self.fuzzer.rows[index % len(self.fuzzer.rows)]

    @rule()
    def start(self):
        self.fuzzer.start()

    @precondition(lambda self: self.fuzzer.rows)
    @rule(index=st.integers(0, 50), count=st.integers(1, 9))
    def grow(self, index, count):
        row = self.pick(index)
        for _ in range(count):
            self.fuzzer.grow(row)

    @precondition(lambda self: self.fuzzer.rows)
    @rule(index=st.integers(0, 50))
    def fork(self, index):
        self.fuzzer.fork(self.pick(index))

    @precondition(lambda self: self.fuzzer.rows)
    @rule(index=st.integers(0, 50), discard=st.booleans())
    def stop(self, index, discard):
        self.fuzzer.stop(self.pick(index), discard=discard)

    @invariant()
    def balanced(self):
        if hasattr(self, "fuzzer"):
            self.fuzzer.check()


TestBlockMachine = BlockMachine.TestCase
TestBlockMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
