"""KV of sequences that make room goes to host memory and comes back, found by its tokens."""

import pytest

from engine.api.errors import InvariantError
from engine.api.options import Offload
from engine.api.stats import SequenceState
from engine.cache.block_manager import BlockManager
from engine.cache.budget import KVBudget
from engine.scheduler.cost_model import Load
from tests.engine.scheduler.test_scheduler import SIZE, Bench


def offloading_bench(slots=100, **config):
    bench = Bench(
        num_blocks=config.pop("num_blocks", 10), offload=config.pop("offload", Offload.ALWAYS), **config
    )
    bench.blocks[0].host.grow(slots)
    return bench


def moves(plan):
    one = plan.moves.get(0)
    return (one.offloads, one.reloads) if one else ([], [])


def make_room(bench, prompt=36):
    """Finish a sequence of 5 blocks, then run one that needs nearly all of the 10."""
    old = bench.submit(18)
    bench.tick()
    ids = list(old.token_ids[:18])
    bench.scheduler.finish(old)
    large = bench.submit(prompt)
    plan = bench.tick()
    return ids, large, plan


def test_evicted_blocks_go_to_host_memory_and_come_back():
    bench = offloading_bench()
    ids, large, plan = make_room(bench)
    offloads, reloads = moves(plan)
    assert len(offloads) == 3 and not reloads
    assert len({slot for _, _, slot in offloads}) == 3
    bench.scheduler.finish(large)
    again = bench.submit(ids)
    plan = bench.tick()
    assert sorted(slot for _, _, slot in moves(plan)[1]) == sorted(slot for _, _, slot in offloads)
    assert again.cached_tokens == 16
    assert bench.lengths(plan) == {3: 2}, "more was computed than the last block's tokens"
    assert again.state is SequenceState.DECODE


def test_a_slot_given_up_meanwhile_is_computed_again():
    bench = offloading_bench(slots=2)
    ids, large, plan = make_room(bench)
    assert len(moves(plan)[0]) == 3 and bench.blocks[0].host.used == 2
    bench.scheduler.finish(large)
    again = bench.submit(ids)
    while again.state is not SequenceState.DECODE:
        plan = bench.tick()
    bench.blocks[0].host.check()
    assert again.num_computed == 18


def test_nothing_is_saved_where_computing_is_quicker():
    bench = offloading_bench(offload=Offload.AUTO)
    for tokens in (4, 8, 16) * 5:
        bench.scheduler.cost.observe(0, Load(0, 0, tokens), 0.01 * tokens)
    for rate, saved in ((1e-9, 0), (1e3, 3), (None, 0)):
        bench.scheduler.kv_admission.host_gb_s = rate
        _, large, plan = make_room(bench)
        assert len(moves(plan)[0]) == saved
        bench.scheduler.finish(large)
        bench.blocks[0].evict_all()


def test_what_moves_in_a_tick_beside_decode_rows_is_bounded():
    bench = offloading_bench(min_prefill_tokens=1, num_blocks=30)
    bench.scheduler.kv_admission.host_gb_s = 10 / 5e6
    row = bench.submit(3, max_tokens=70)
    bench.tick()
    for _ in range(20):
        bench.scheduler.cost.observe(0, Load(1, 4, 0), 1.5)
        bench.scheduler.cost.observe(0, Load(1, 4, 4), 2.0)
    old = bench.submit(40)
    while old.state is not SequenceState.DECODE:
        bench.tick()
    ids = list(old.token_ids[:40])
    bench.scheduler.finish(old)
    large = bench.submit(100, max_tokens=1)
    saved = []
    while large.state is not SequenceState.DECODE:
        plan = bench.tick()
        assert plan.batches and row in plan.batches[0].decode
        saved.append(len(moves(plan)[0]))
        assert saved[-1] <= 2, "more than the row's growth and one block of the tick's spare time"
    assert sum(saved) >= 5
    bench.scheduler.finish(large)
    back = bench.submit(ids, max_tokens=1)
    loaded = []
    while back.state is not SequenceState.DECODE:
        plan = bench.tick()
        loaded.append(len(moves(plan)[1]))
        assert loaded[-1] <= 1
    assert sum(loaded) >= 3


def test_a_block_saved_once_is_not_copied_twice():
    bench = offloading_bench()
    ids, large, plan = make_room(bench)
    first = {slot for _, _, slot in moves(plan)[0]}
    bench.scheduler.finish(large)
    back = bench.submit(ids)
    bench.tick()
    bench.scheduler.finish(back)
    plan = bench.plan()
    assert plan.empty
    bench.submit(36)
    plan = bench.tick()
    assert first.isdisjoint(slot for _, _, slot in moves(plan)[0])


def test_kv_that_was_lost_on_the_way_ends_its_sequence():
    bench = offloading_bench()
    ids, large, _ = make_room(bench)
    bench.scheduler.finish(large)
    back = bench.submit(ids)
    plan = bench.plan()
    assert bench.commit(plan, failed={3: "its KV could not be brought back"}) == [back]
    assert back.error == "its KV could not be brought back"


def test_the_books_of_host_memory_are_checked():
    budget = KVBudget(100)
    blocks = BlockManager(11, SIZE, 10, budget)
    blocks.host.grow(3)
    blocks.host.check()
    blocks.host._free.pop()
    with pytest.raises(InvariantError, match="host KV: 2 free"):
        blocks.host.check()
