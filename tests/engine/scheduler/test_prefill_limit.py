"""After a pass without memory the next ones are planned smaller, and grow again when they succeed."""

from engine.scheduler.prefill.prefill_limit import FIRST, LEAST, PASSES, PrefillLimit


def test_it_halves_what_had_no_memory_and_doubles_after_passes_that_had():
    cap = PrefillLimit(4096)
    cap.passed(1)
    assert cap.tokens == 4096
    cap.short(1500)
    assert cap.tokens == 750
    cap.short(0)
    for _ in range(2 * PASSES):
        cap.passed(0)
    assert cap.tokens == 750, "passes of decode rows say nothing about prompts"
    for _ in range(PASSES - 1):
        cap.passed(1)
    assert cap.tokens == 750
    cap.passed(1)
    assert cap.tokens == 1500
    for _ in range(4 * PASSES):
        cap.passed(1)
    assert cap.tokens == 4096


def test_something_is_always_read():
    cap = PrefillLimit(4096)
    for _ in range(20):
        cap.short(cap.tokens)
    assert cap.tokens == LEAST
    small = PrefillLimit(8)
    small.short(8)
    assert small.tokens == 8


def test_beside_rows_chunks_grow_from_tick_to_tick():
    cap = PrefillLimit(4096)
    assert (cap.most(False), cap.most(True)) == (4096, FIRST)
    cap.planned(FIRST, True)
    assert cap.most(True) == 2 * FIRST
    cap.planned(200, True)
    assert cap.most(True) == 400
    cap.planned(0, True)
    assert cap.most(True) == FIRST
    cap.planned(4000, False)
    assert cap.most(True) == FIRST, "what was read while nobody decoded says nothing"
    cap.planned(4000, True)
    assert cap.most(True) == 4096
