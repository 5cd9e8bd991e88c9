"""A wrong page id in a block table is caught before the pass that would use it, and ends its sequence."""

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.api.request import FinishReason
from engine.scheduler.sequence import Sequence
from tests.support.fault_bench import CHUNK, VICTIM, FaultBench, read

Damage = Callable[[FaultBench, Sequence, Sequence], None]


def scratch(bench: FaultBench, victim: Sequence, other: Sequence) -> None:
    victim.block_table[1] = 0


def out_of_range(bench: FaultBench, victim: Sequence, other: Sequence) -> None:
    victim.block_table[0] = 10**6


def written_by_another(bench: FaultBench, victim: Sequence, other: Sequence) -> None:
    victim.block_table[victim.num_computed // 32] = other.block_table[-1]


def read_of_another(bench: FaultBench, victim: Sequence, other: Sequence) -> None:
    victim.block_table[0] = other.block_table[0]


def swapped(bench: FaultBench, victim: Sequence, other: Sequence) -> None:
    table = victim.block_table
    table[0], table[1] = table[1], table[0]


def never_written(bench: FaultBench, victim: Sequence, other: Sequence) -> None:
    blocks = bench.engine._loop.models.get(victim.model).blocks
    never = [b for b in range(blocks.total, 0, -1) if not blocks.refs(b) and blocks._nodes[b] is None]
    victim.block_table[1] = never[0]


CHEAP = [
    (scratch, "names KV block 0"),
    (out_of_range, "names KV block 1000000"),
    (written_by_another, "would write to KV block"),
]
CANARIES = [
    (read_of_another, "holds other tokens"),
    (swapped, "holds other tokens"),
    (never_written, "KV block"),
]


DEBUG, PLAIN = "debug", "plain"


@pytest.fixture(scope="module")
def bench(request, small_model: Path):
    bench = FaultBench(small_model, debug=request.param == DEBUG)
    yield bench
    bench.engine.close()


def damage_when(bench: FaultBench, computed: int, damage: Damage) -> None:
    """Damage the victim's table between two ticks, once `computed` of its tokens are.

    Another is paused from then on: however slowly the victim's prompt is read, it does not end before.
    """
    loop, tap = bench.engine._loop, bench.tap()

    def look() -> None:
        scheduler = loop.scheduler
        others = [s for s in scheduler.sequences.values() if s.request.label != VICTIM and s.block_table]
        for victim in scheduler.sequences.values():
            if victim.request.label != VICTIM or not others:
                continue
            if victim.num_computed < computed:
                scheduler.pause(others[0].sequence_id)
            else:
                tap.before = lambda batch: None
                damage(bench, victim, others[0])

    tap.before = lambda batch: loop._post(look)


def resume_all(bench: FaultBench) -> None:
    scheduler = bench.engine._loop.scheduler
    for sequence_id in scheduler.sequences:
        scheduler.resume(sequence_id)


def check(bench: FaultBench, damage: Damage, computed: int, words: str) -> None:
    bench.forget_prefixes()
    damage_when(bench, computed, damage)
    others, victim = bench.everybody(30, long=True)
    _, end = read(victim)
    bench.on_thread(lambda: resume_all(bench))
    assert end.reason is FinishReason.ERROR
    assert words in (end.error or "") and "Send the message again" in (end.error or "")
    bench.check_others(others)
    bench.check_idle()


@pytest.mark.parametrize("computed", [CHUNK + 1, 120], ids=["prefill", "decode"])
@pytest.mark.parametrize(("damage", "words"), CHEAP)
@pytest.mark.parametrize("bench", [DEBUG, PLAIN], indirect=True)
def test_tables_that_could_harm_others_are_always_caught(bench, damage, words, computed):
    check(bench, damage, computed, words)


@pytest.mark.parametrize("computed", [2 * CHUNK + 1, 120], ids=["prefill", "decode"])
@pytest.mark.parametrize(("damage", "words"), CANARIES)
@pytest.mark.parametrize("bench", [DEBUG], indirect=True)
def test_canaries_catch_tables_that_show_other_tokens(bench, damage, words, computed):
    check(bench, damage, computed, words)
