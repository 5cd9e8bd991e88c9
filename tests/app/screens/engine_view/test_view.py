"""The engine view over a scripted engine."""

import asyncio
import time
from dataclasses import replace

import pytest

from app.screens.engine_view import figures
from app.screens.engine_view.chat_table import ChatRow, table_rows
from app.screens.engine_view.kv_map import KVMapView
from app.screens.engine_view.pixels import CHAT, CURSOR, LIMIT
from app.screens.engine_view.screen import EngineView
from app.widgets.tab_bar import TabItem
from engine import DeviceUse, ModelStats, SequenceDetail, TickRecord
from engine.api.stats import KVGroupStats
from tests.app.driving import plain, ready, say, shown_answer, wait_until
from tests.app.widgets.test_panel import SEQUENCE, text_of
from tests.support.fakes import STATS

SIZES = ((60, 15), (80, 24), (120, 40), (200, 60))


async def three_chats(pilot, engine):
    """Three chats that answer; the second is in front."""
    screen = await ready(pilot)
    for number, title in enumerate(("Foxes", "Rain in March", "Terns")):
        if number:
            await pilot.press("ctrl+t")
            await ready(pilot)
        await say(pilot, f"Tell me of {title} " + "and more " * 20)
        await wait_until(pilot, lambda number=number: screen.active.sequence_id == number + 1)
        screen.active.rename(title)
        engine.generations[number].feed("It begins ")
    await pilot.press("alt+2")
    await wait_until(pilot, lambda: screen.tabs.position == 1)
    return screen


async def opened(pilot, key="f12"):
    await pilot.press(key)
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, EngineView))
    view = pilot.app.screen
    await wait_until(pilot, lambda: view.query_one(KVMapView).blocks is not None)
    return view


def words(view):
    names = ("head", "map_head", "under", "time_head", "chats", "foot")
    return "\n".join(plain(view.query_one(f"#{name}")) for name in names)


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_it_says_everything_at_every_size(make_app, engine, size):
    app = make_app()
    engine.tick_log = lambda: [TickRecord(time.perf_counter(), 3, 0, (), 0.0, 12.0, (), 24.0, 1)]
    async with app.run_test(size=size) as pilot:
        await three_chats(pilot, engine)
        view = await opened(pilot)
        await wait_until(pilot, lambda: "3 answering" in words(view) and "budget" in words(view))
        text, width, height = words(view), *size
        for expected in ("90 tok/s", "GB free", "Context memory", "1 dot = ", "Foxes", "Ticks", "Esc back"):
            assert expected in text, f"{expected!r} is missing:\n{text}"
        rows = text.splitlines()
        assert all(len(line) <= width for line in rows), [line for line in rows if len(line) > width]
        dots = view.query_one(KVMapView)._dots
        assert {CHAT, CHAT + 1, CHAT + 2, CURSOR} <= set(dots.flat) | {CHAT, CURSOR} and CURSOR in dots
        assert LIMIT in view.query_one("#timeline")._dots
        bottom = max(widget.region.bottom for widget in view.children)
        assert bottom == height and view.query_one("#foot").region.bottom == height


@pytest.mark.parametrize("key", ["f12", "alt+k"])
async def test_a_key_opens_it_and_closes_it_and_escape_too(make_app, engine, key):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await three_chats(pilot, engine)
        await opened(pilot, key)
        await pilot.press(key)
        await wait_until(pilot, lambda: app.screen is screen)
        await opened(pilot, key)
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is screen)
        assert all(generation.finished is None for generation in engine.generations), "nothing was stopped"


async def test_what_came_while_it_was_open_is_there_afterwards(make_app, engine):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await three_chats(pilot, engine)
        await opened(pilot)
        engine.generations[1].feed("and goes on ")
        await wait_until(pilot, lambda: "goes on" in screen.active.conversation.last_answer().text)
        await pilot.resize_terminal(140, 40)
        await pilot.press("escape")
        await wait_until(pilot, lambda: "goes on" in shown_answer(screen.deck.transcript))
        await wait_until(pilot, lambda: "Rain in March" in plain(screen.query_one("#panel")))
        engine.generations[1].feed("and on")
        await wait_until(pilot, lambda: "goes on and on" in shown_answer(screen.deck.transcript))


async def test_enter_goes_to_the_chat_under_the_cursor(make_app, engine):
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await three_chats(pilot, engine)
        view = await opened(pilot)
        for title in ("Rain in March", "Terns"):
            await pilot.press("n")
            await wait_until(pilot, lambda title=title: title in plain(view.query_one("#under")))
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.screen is screen and screen.tabs.position == 2)


async def test_the_cursor_says_who_shares_a_block_and_what_is_kept(make_app, engine):
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await three_chats(pilot, engine)
        view = await opened(pilot)
        under, blocks = view.query_one("#under"), view.query_one(KVMapView)
        assert "1 dot = 1 block" in plain(view.query_one("#map_head"))
        await pilot.press("home")
        await wait_until(pilot, lambda: "block 1:" in plain(under))
        assert "Foxes and Rain in March, Terns, shared by 3; tokens 1 to 16" in plain(under)
        await pilot.press("end")
        await wait_until(pilot, lambda: "block 600: kept for chats to come" in plain(under))
        await pilot.press("left", "up")
        last, width = 600, blocks.size.width
        await wait_until(pilot, lambda: f"block {last - 1 - width}: free" in plain(under))
        assert await pilot.click(KVMapView, offset=(1, 0))
        await wait_until(pilot, lambda: "block 2: Foxes" in plain(under))
        assert await pilot.click(KVMapView, offset=(1, 0), times=2)
        await wait_until(pilot, lambda: app.screen is not view)


async def test_a_map_of_more_blocks_than_dots_says_so_and_can_be_zoomed(make_app, engine):
    engine.num_blocks = 20_001
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await three_chats(pilot, engine)
        view = await opened(pilot)
        head, seen = view.query_one("#map_head"), []
        while "1 dot = 1 block" not in plain(head):
            seen.append(plain(head))
            await pilot.press("plus")
            await wait_until(pilot, lambda: plain(head) != seen[-1])
        assert len(seen) >= 3 and all("blocks of 16 tokens" in line for line in seen)
        await pilot.press("home")
        await wait_until(pilot, lambda: "block 1:" in plain(view.query_one("#under")))
        await pilot.press("minus")
        await wait_until(pilot, lambda: plain(head) == seen[-1])


async def test_pools_are_chosen_by_tab(make_app, engine):
    engine.windows = (0, 1024)
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await three_chats(pilot, engine)
        view = await opened(pilot)
        head = view.query_one("#map_head")
        assert "(1 of 2)" in plain(head) and "Tab" in plain(view.query_one("#foot"))
        await pilot.press("tab")
        await wait_until(pilot, lambda: "layers that see 1,024 tokens (2 of 2)" in plain(head))
        await pilot.press("shift+tab")
        await wait_until(pilot, lambda: "(1 of 2)" in plain(head))


async def test_nothing_is_asked_before_it_opens_and_after_it_closes(make_app, engine):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await three_chats(pilot, engine)
        assert engine.looks == 0
        view = await opened(pilot)
        view.look()
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is screen and not view.is_attached)
        before = engine.looks
        assert before >= 2
        assert not [timer for timer in view._timers if timer._task is not None and not timer._task.done()]
        assert engine.looks == before


async def test_the_drivers_figures_are_shown_where_there_are_any(make_app, engine):
    engine.use = DeviceUse(12_000_000_000, 80_000_000_000, 312.4)
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await three_chats(pilot, engine)
        view = await opened(pilot)
        await wait_until(pilot, lambda: view._use is not None)
        view.look()
        await wait_until(pilot, lambda: "GPU 12 GB of 80 GB · 312 W" in plain(view.query_one("#head")))


async def test_before_there_is_a_model_it_says_so(make_app, engine):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        engine.models.clear()
        await pilot.press("f12")
        await wait_until(pilot, lambda: isinstance(app.screen, EngineView))
        await wait_until(pilot, lambda: "no model is open" in plain(app.screen.query_one("#map_head")))
        await pilot.press("right", "enter", "n", "plus", "tab")
        await asyncio.sleep(0)
        assert "idle" in plain(app.screen.query_one("#head"))


def test_the_table_shows_what_fits_and_those_that_work_first():
    detail = SequenceDetail(1, 1_100, 860.0, 2, 71.0, 1_400.0)
    working = ChatRow(TabItem("9", "Foxes"), 8, False, SEQUENCE, detail)
    chats = [*(ChatRow(TabItem(str(n), f"idle {n}"), n) for n in range(8)), working]
    wide = text_of(table_rows(chats, 160, 10))
    for expected in ("31.2", "1.4 s", "71 ms", "1,100", "860 ms", "2x", "shared"):
        assert expected in wide, wide
    narrow = text_of(table_rows(chats, 60, 4))
    assert "Foxes" in narrow and "and 7 more" in narrow and "tok/s" in narrow and "gave way" not in narrow
    assert all(len(line) <= 60 for line in narrow.splitlines())


def test_figures_fill_the_lines_that_there_are():
    lines = figures.figure_rows(STATS, None, 60, 2)
    assert len(lines) == 2 and "cpu · torch float32" in text_of(lines) and "GPU" not in text_of(lines)
    assert figures.figure_rows(STATS, None, 60, 0) == []
    windows = tuple(KVGroupStats(window, 2048, 40_000_000, 0) for window in (0, 1024))
    model = ModelStats("m", "m.gguf", 1, 2048, 8192, windows)
    busy = replace(STATS, models=(model,), kv_bytes_host=120_000_000, tick_limit_ms=24.0, preemptions=2)
    text = text_of(figures.figure_rows(busy, None, 70, 9))
    for expected in ("12 of 24 ms", "40 MB for the last 1,024 tokens", "120 MB in host memory", "2 times"):
        assert expected in text, text
    assert all(len(line) <= 70 for line in text.splitlines())


async def test_what_is_kept_of_a_chat_is_named_and_given_up_by_a_key(make_app, engine):
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await three_chats(pilot, engine)
        engine.generations[0].finish()
        foxes = screen.tabs.sessions[0].conversation
        await wait_until(pilot, lambda: not screen.tabs.sessions[0].busy)
        engine.kept_of = foxes.id
        view = await opened(pilot)
        await pilot.press("end")
        await wait_until(pilot, lambda: "block 600: kept of Foxes" in plain(view.query_one("#under")))
        await pilot.press("e")
        await wait_until(pilot, lambda: app._notifications)
        assert engine.evicted == [foxes.id]
        assert "26 kB of “Foxes” are free" in [n.message for n in app._notifications][-1]
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.screen is screen and screen.tabs.position == 0)


async def test_a_chat_that_answers_keeps_its_context_and_can_be_saved(make_app, engine):
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await three_chats(pilot, engine)
        view = await opened(pilot)
        await pilot.press("n")
        await wait_until(pilot, lambda: "Rain in March" in plain(view.query_one("#under")))
        await pilot.press("e")
        refused = "“Rain in March” keeps its context: it is answering; stop its answers before."
        await wait_until(pilot, lambda: refused in [n.message for n in app._notifications])
        assert not engine.evicted
        await pilot.press("s")
        await wait_until(pilot, lambda: engine.saved == [screen.tabs.sessions[1].conversation.id])
        await wait_until(pilot, lambda: "on their way to disk" in [n.message for n in app._notifications][-1])


async def test_blocks_of_nobody_are_left_alone(make_app, engine):
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await three_chats(pilot, engine)
        view = await opened(pilot)
        await pilot.press("end")
        await wait_until(pilot, lambda: "kept for chats to come" in plain(view.query_one("#under")))
        await pilot.press("e", "s")
        await wait_until(pilot, lambda: len(app._notifications) == 2)
        assert not engine.evicted and not engine.saved
