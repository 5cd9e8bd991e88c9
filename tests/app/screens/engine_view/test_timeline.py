"""The picture of the last ticks."""

from app.screens.engine_view.pixels import FREE, LIMIT, NONE, READING, WAITING, WRITING
from app.screens.engine_view.timeline import SECONDS, Timeline
from engine import TickRecord


def tick(ended_at, ms=20.0, rows=2, tokens=0, limit=40.0, waiting=0):
    return TickRecord(ended_at, rows, tokens, (), 0.0, ms, (), limit, waiting)


def picture(ticks, width=16, rows=12, now=100.0):
    timeline = Timeline()
    timeline.add(ticks, width, now)
    return timeline, timeline.draw(rows, now)


def test_a_tick_stands_in_the_time_that_it_took_and_the_rest_is_idle():
    _, dots = picture([tick(97.0, ms=1000.0, limit=0.0)])
    filled = [x for x in range(16) if WRITING in dots[:, x]]
    assert filled == [7, 8, 9], "from a second before its end, at half a second a column"
    assert all(dots[9, x] == FREE and NONE in dots[:, x] for x in range(16) if x not in filled)


def test_the_budget_stands_above_ticks_that_keep_to_it_and_in_those_that_do_not():
    _, dots = picture([tick(97.9, ms=20.0), tick(99.4, ms=100.0)])
    kept, broken = dots[:, 10], dots[:, 13]
    assert list(kept).index(LIMIT) < list(kept).index(WRITING)
    assert list(broken).index(WRITING) < list(broken).index(LIMIT), "it goes beyond the budget"
    assert broken[0] == WRITING or broken[1] == WRITING


def test_what_reading_adds_to_a_tick_stands_on_what_writing_takes():
    timeline, dots = picture([tick(98.0, ms=20.0), tick(99.4, ms=60.0, tokens=64), tick(99.9, 40.0, 0, 64)])
    mixed, reading = list(dots[:, 13]), list(dots[:, 14])
    assert mixed.count(READING) >= mixed.count(WRITING) > 0
    assert mixed.index(READING) < mixed.index(WRITING)
    assert READING in reading and WRITING not in reading
    assert timeline.longest_ms == 60.0 and timeline.limit_ms == 40.0


def test_who_waits_is_shown_below():
    _, dots = picture([tick(99.4, waiting=2), tick(99.9)])
    assert (dots[11, 13], dots[11, 14]) == (WAITING, NONE) and set(dots[10]) == {NONE}


def test_ticks_are_taken_once_old_ones_go_and_another_width_begins_anew():
    ticks = [tick(95.0 + number / 10) for number in range(50)]
    timeline, before = picture(ticks, now=100.0)
    timeline.add(ticks, 16, 100.0)
    assert (timeline.draw(12, 100.0) == before).all()
    timeline.add(ticks, 30, 100.0)
    assert timeline.draw(12, 100.0).shape == (12, 30)
    timeline.add(ticks, 30, 100.0 + SECONDS + 1)
    assert not timeline.longest_ms and not timeline.limit_ms


def test_there_is_a_picture_for_every_size():
    for width, rows in ((0, 0), (0, 6), (1, 1), (1, 3), (200, 2)):
        _, dots = picture([tick(99.9)], width, rows)
        assert dots.shape == (rows, width)
