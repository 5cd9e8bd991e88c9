"""What the engine view looks like; after an intended change run it once with `--snapshot-update`."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from app.screens.engine_view import screen as module
from app.screens.engine_view.pixels import CHAT
from app.settings.file import GeneralSettings, Settings
from engine import SequenceState, TickRecord
from tests.app.driving import plain
from tests.app.screens.engine_view.test_view import opened, three_chats

NOW = 100.0


def ticks():
    """Writing, then a prompt that is read beside it, then a pause, then writing beyond the budget."""
    plain_ones = [TickRecord(93.0 + n / 50, 2, 0, (), 0.0, 12.0, (), 24.0, 0) for n in range(150)]
    reading = [TickRecord(96.5 + n / 50, 2, 64, (), 0.0, 22.0, (), 24.0, 1) for n in range(50)]
    slow = [TickRecord(99.0 + n / 25, 2, 0, (), 0.0, 30.0, (), 24.0, 0) for n in range(25)]
    return [*plain_ones, *reading, *slow]


@pytest.mark.parametrize(
    ("theme", "size"), [("ink", (80, 24)), ("linen", (120, 40)), ("moss", (60, 15))], ids=str
)
def test_engine_view(snap_compare, make_app, engine, monkeypatch, theme, size):
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: NOW))
    monkeypatch.setattr(module, "_PERIOD", 3600.0)
    app = make_app(Settings(general=GeneralSettings(theme=theme)))

    async def run(pilot):
        await three_chats(pilot, engine)
        engine.ticks = ticks()
        engine.base = replace(engine.base, tick_limit_ms=24.0)
        engine.generations[1].more = {"drafted": 412, "accepted": 321}
        engine.generations[2].state = SequenceState.PREFILL
        engine.generations[2].computed = 24
        pilot.app.call_later(pilot.app.chat_screen.action_engine_view)
        await pilot.pause()
        pilot.app.screen.look()
        view = await opened(pilot, "n")
        await pilot.pause()
        view.look()
        assert CHAT in view.query_one("#map")._dots and "2 answering" in plain(view.query_one("#head"))
        await pilot.pause()

    assert snap_compare(app, run_before=run, terminal_size=size)
