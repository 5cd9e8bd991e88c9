"""The live panel's and status line's contents, as text."""

import re
from dataclasses import replace

from app.chat.events import TabState
from app.models.outside import outside_label
from app.widgets.live_panel import LivePanel, PanelTab, panel_rows, tab_rows, total_rows
from app.widgets.sentence import engine_sentence
from app.widgets.sparkline import SpeedHistory, sparkline
from app.widgets.tab_bar import TabItem
from engine import ModelStats, Priority, SequenceState, SequenceStats
from engine.api.stats import KVDiskStats, KVGroupStats
from tests.app.driving import plain, ready, say, wait_until
from tests.support.fakes import STATS

SEQUENCE = SequenceStats(1, "m", "t", SequenceState.DECODE, 10, 60, 70, 2048, 5, 3, 31.25, 0)


def text_of(rows) -> str:
    return "\n".join("".join(text for text, _ in row) for row in rows)


def test_it_shows_every_number_that_is_asked_of_it():
    writing = PanelTab(TabItem("1", "Foxes", TabState.GENERATING), True, SEQUENCE, (10.0, 20.0, 31.0))
    reading = PanelTab(TabItem("2", "Report", TabState.READING, fraction=0.42), False, SEQUENCE)
    waiting = PanelTab(
        TabItem("3", "Later", TabState.QUEUED),
        False,
        replace(SEQUENCE, queue_position=2, wait_s=4.2, note="no KV blocks"),
    )
    stats = replace(STATS, kv_bytes_used=500_000_000, kv_bytes_cached=300_000_000, rows=2, queue_length=1)
    text = text_of(panel_rows([writing, reading, waiting], stats, 40, 40))
    for expected in (
        "31.2 tok/s",
        "reading 42%",
        "2 in line, about 4 s",
        "no KV blocks",
        "70 / 2,048",
        "5 own + 3 shared",
        "1 waiting · 1.2 GB free",
    ):
        assert expected in text, f"{expected!r} is missing:\n{text}"
    assert all(len(line) <= 40 for line in text.splitlines())


def test_a_narrow_panel_says_the_same_in_fewer_words():
    tabs = [
        PanelTab(TabItem("1", "Foxes", TabState.GENERATING), True, SEQUENCE, (10.0,), (12_000, 131_072)),
        PanelTab(
            TabItem("2", "Later", TabState.QUEUED),
            False,
            replace(
                SEQUENCE,
                queue_position=2,
                wait_s=4.2,
                blocks_own=1_000,
                blocks_shared=64,
                note="paused: the context memory is full",
            ),
        ),
    ]
    sequences = tuple(replace(SEQUENCE, sequence_id=number) for number in range(3))
    stats = replace(STATS, sequences=sequences, decode_tok_s=93.2, queue_length=1)
    text = text_of(panel_rows(tabs, stats, 28, 40, more_key="F12"))
    for expected in (
        "70 / 128k",
        "2 in line",
        "1,000 own + 64 shared",
        " 3 answering · 1 waiting\n 93 tok/s · 2.0 GB free\n",
        "F12 shows more",
        "   paused: the context\n   memory is full",
    ):
        assert expected in re.sub(" +\n", "\n", text), f"{expected!r} is missing:\n{text}"
    assert all(len(line) <= 28 for line in text.splitlines()), text


def test_the_engine_is_described_as_a_person_would():
    assert engine_sentence(STATS) == "idle · 2.0 GB free"
    paused = replace(SEQUENCE, state=SequenceState.PAUSED, user_paused=True)
    reading = replace(SEQUENCE, state=SequenceState.PREFILL)
    stats = replace(
        STATS, sequences=(SEQUENCE, reading, paused), decode_tok_s=60.0, kv_bytes_used=200_000_000
    )
    assert engine_sentence(stats) == "1 answering · 1 reading · 1 paused · 60 tok/s · 1.8 GB free"
    outside = replace(STATS, sequences=(SEQUENCE, replace(SEQUENCE, label=outside_label("chat"))))
    assert engine_sentence(outside) == "2 answering · 1 from outside · 2.0 GB free"


async def test_a_panel_that_comes_up_between_its_beats_is_full_at_once(make_app, engine):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        panel = screen.query_one(LivePanel)
        screen.beat._beats, screen.beat._linger = 1, 0
        screen.action_toggle_panel()
        await wait_until(pilot, lambda: plain(panel))
        assert "New chat" in plain(panel) and "starting" not in plain(panel)


PAUSED = replace(SEQUENCE, state=SequenceState.PAUSED)


def rows_of(state: TabState, sequence: SequenceStats, priority: Priority = Priority.NORMAL, width: int = 40):
    tab = PanelTab(TabItem("1", "Foxes", state), False, sequence, (10.0, 20.0), None, priority)
    text = text_of(tab_rows(tab, width, 0))
    assert all(len(line) <= width for line in text.splitlines()), text
    return text


def test_a_tab_says_who_paused_it_why_and_where_its_memory_is():
    mine = rows_of(TabState.PAUSED, replace(PAUSED, user_paused=True, note="paused on request"))
    assert "paused\n" in mine.replace(" \n", "\n") and "you paused it" in mine and "host" not in mine
    note = "paused: the context memory is full"
    full = rows_of(TabState.QUEUED, replace(PAUSED, note=note, blocks_own=0, blocks_host=1024))
    for expected in ("waiting", note, "0 own", "1,024 blocks in host memory"):
        assert expected in full, full


def test_a_tab_says_when_it_is_its_turn():
    queued = replace(SEQUENCE, state=SequenceState.QUEUED, queue_position=3)
    assert "3 in line" in rows_of(TabState.QUEUED, queued) and "about" not in rows_of(TabState.QUEUED, queued)
    assert "3 in line, about 3 min" in rows_of(TabState.QUEUED, replace(queued, wait_s=190.0))
    reading = replace(SEQUENCE, state=SequenceState.PREFILL)
    assert "about 2 s" in rows_of(TabState.READING, replace(reading, wait_s=2.1))
    assert "about" not in rows_of(TabState.READING, replace(reading, wait_s=0.2))


def test_guesses_priority_and_focus_are_shown_only_where_there_are_any():
    plain = rows_of(TabState.GENERATING, SEQUENCE)
    assert not any(word in plain for word in ("guesses", "high", "low", "▸"))
    drafted = replace(SEQUENCE, drafted=12_345, accepted=9_629, focused=True)
    marked = rows_of(TabState.GENERATING, drafted, Priority.HIGH)
    assert "78% of 12,345 guesses right" in marked
    assert marked.startswith("▸") and "high  31.2 tok/s" in marked
    assert "low  31.2 tok/s" in rows_of(TabState.GENERATING, SEQUENCE, Priority.LOW)


def test_totals_name_host_memory_only_where_there_is_any():
    assert "host" not in text_of(total_rows(STATS, 40))
    text = text_of(total_rows(replace(STATS, kv_bytes_host=120_000_000), 40))
    assert "120 MB in host memory" in text
    windows = tuple(KVGroupStats(window, 2048, 40_000_000, 0) for window in (0, 1024))
    model = ModelStats("m", "m.gguf", 1, 2048, 8192, windows)
    text += "\n" + text_of(total_rows(replace(STATS, models=(model,)), 40))
    assert "40 MB of it for the last 1,024 tokens" in text
    assert all(len(line) <= 40 for line in text.splitlines())


def test_totals_say_what_is_on_disk_and_why_some_was_not_used():
    disk = KVDiskStats(460_000_000, 8 << 30)
    text = text_of(total_rows(replace(STATS, kv_disk=disk), 40))
    assert "and 460 MB on disk" in text and "back" not in text and "KV" not in text
    used = replace(disk, tokens_restored=9_984, note="KV on disk was of KV type bfloat16")
    text = text_of(total_rows(replace(STATS, kv_disk=used), 40))
    assert "on disk, 9,984 tokens back" in text and "KV on disk was of KV type bfloat16" in text
    assert all(len(line) <= 40 for line in text.splitlines())
    assert "disk" not in text_of(total_rows(replace(STATS, kv_disk=replace(disk, bytes_used=0)), 40))


def test_more_tabs_than_fit_are_counted_and_the_active_one_is_always_there():
    tabs = [
        PanelTab(TabItem(str(i), f"tab {i}", TabState.GENERATING), i == 19, SEQUENCE, (1.0,))
        for i in range(20)
    ]
    rows = panel_rows(tabs, STATS, 40, 20)
    text = text_of(rows)
    assert len(rows) <= 20
    assert "tab 19" in text and "more" in text


def test_where_there_is_little_room_every_tab_has_a_line_and_the_active_one_all_of_its_lines():
    tabs = [
        PanelTab(TabItem(str(i), f"tab {i}", TabState.GENERATING), i == 2, SEQUENCE, (1.0,)) for i in range(4)
    ]
    height = 2 + len(total_rows(STATS, 40)) + 4
    for spare, contexts in ((0, 0), (4, 1), (7, 1), (8, 2), (16, 4)):
        rows = panel_rows(tabs, STATS, 40, height + spare)
        text = text_of(rows)
        assert len(rows) == height + spare
        assert all(f"tab {i}" in text for i in range(4)) and "more" not in text
        assert text.count("context ") == contexts
    lines = text_of(panel_rows(tabs, STATS, 40, height + 4)).splitlines()
    [at] = [number for number, line in enumerate(lines) if "context " in line]
    assert "tab 2" in lines[at - 2]


def test_sparkline_scales_and_keeps_the_newest_at_the_right():
    assert sparkline([], 4) == "    "
    drawn = sparkline([1, 2, 4], 5)
    assert drawn[:2] == "  " and drawn[2] < drawn[3] < drawn[4]
    history = SpeedHistory(seconds_per_value=0.5)
    for now in (0.0, 0.1, 0.6, 0.7, 1.2):
        history.add(now, now)
    assert list(history.values) == [0.0, 0.6, 1.2]


async def test_the_panel_is_there_from_120_columns_and_a_key_toggles_it(make_app):
    app = make_app()
    async with app.run_test(size=(119, 30)) as pilot:
        screen = await ready(pilot)
        panel = screen.query_one("#panel")
        assert not panel.display
        await pilot.resize_terminal(120, 30)
        await wait_until(pilot, lambda: panel.display and panel.size.width == 28)
        await pilot.resize_terminal(140, 30)
        await wait_until(pilot, lambda: panel.size.width == 40)
        await pilot.press("f3")
        await wait_until(pilot, lambda: not panel.display)
        await pilot.resize_terminal(80, 24)
        await pilot.press("f3")
        await wait_until(pilot, lambda: panel.display and panel.has_class("-over"))


async def test_reading_and_writing_are_shown_and_nothing_ticks_when_idle(make_app, engine, short_beats):
    app = make_app()
    async with app.run_test(size=(140, 40)) as pilot:
        screen = await ready(pilot)
        await say(pilot, "one two three four five six seven eight")
        await wait_until(pilot, lambda: engine.generations)
        engine.generations[0].read(5)
        panel, status = screen.query_one("#panel"), screen.query_one("#status")
        await wait_until(pilot, lambda: "reading 50%" in plain(panel) and "reading 50%" in plain(status))
        engine.generations[0].feed("word")
        await wait_until(pilot, lambda: "30.0 tok/s" in plain(panel) and "30.0 tok/s" in plain(status))
        engine.generations[0].finish()
        await wait_until(pilot, lambda: "idle" in plain(panel))
        assert "30.0 tok/s" in plain(status)
        await wait_until(pilot, lambda: not screen.beat._timer._active.is_set())
        assert app.context.services.pump._timer is None


def test_narrowed_context_memory_says_why():
    note = "float16 would hold 5,120 tokens"
    models = tuple(
        ModelStats(name, f"{name}.gguf", 1, 2048, 8192, kv_dtype=kind, kv_note=said)
        for name, kind, said in (("m", "q8_0", note), ("n", "q8_0", note), ("o", "float16", ""))
    )
    stats = replace(STATS, kv_dtype="q8_0, float16", models=models)
    wide, narrow = text_of(total_rows(stats, 60)), text_of(total_rows(stats, 40))
    assert wide.count(f" KV q8_0: {note}") == 1
    assert f"\n q8_0: {note}" in narrow


def test_what_torch_computes_in_place_of_kernels_is_listed():
    sentence = "torch computes attention of prompts (2.1 ms a token): no kernel serves heads of 576"
    odd = ModelStats("odd", "odd.gguf", 1, 2048, 8192, by_torch=(sentence,))
    stats = replace(STATS, models=(odd, replace(odd, name="served", by_torch=())), fallbacks=("all of it",))
    text = text_of(total_rows(stats, 40))
    assert " ".join(text.split()).endswith(f"all of it odd: {sentence}") and "served" not in text
    assert all(len(line) <= 40 for line in text.splitlines())
