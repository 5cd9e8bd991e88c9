"""Sequences paused on request keep their KV only while nobody who could run needs the memory."""

from engine.api.stats import SequenceState
from tests.engine.scheduler.test_scheduler import Bench


def test_paused_sequences_give_their_blocks_to_one_that_waits():
    bench = Bench(num_blocks=10)
    holder = bench.submit(30)
    bench.tick()
    bench.scheduler.pause(1)
    assert bench.scheduler.idle and bench.plan().empty
    newcomer = bench.submit(30)
    assert bench.lengths(bench.tick()) == {2: 30}
    assert not holder.block_table and holder.user_paused and newcomer.block_table
    bench.scheduler.finish(newcomer)
    bench.scheduler.resume(1)
    bench.tick()
    assert (holder.state, holder.num_computed) == (SequenceState.DECODE, 31)


def test_paused_sequences_give_their_blocks_to_a_row_that_grows():
    bench = Bench(num_blocks=13)
    holder, row = bench.submit(19), bench.submit(19)
    bench.tick()
    bench.scheduler.pause(1)
    while len(row.block_table) < 8:
        bench.tick()
    assert holder.block_table
    while len(row.block_table) < 9:
        bench.tick()
    assert not holder.block_table and row.preemptions == 0


def test_paused_sequences_are_not_counted_as_running():
    bench = Bench(max_sequences=1)
    bench.submit(5)
    bench.tick()
    bench.scheduler.pause(1)
    newcomer = bench.submit(5)
    bench.tick()
    assert newcomer.state is SequenceState.DECODE
