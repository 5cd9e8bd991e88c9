"""A call that is to come once comes, however late its thread is."""

import time

from textual import _time
from textual.app import App

from app.terminal.later import later


async def test_it_comes_to_a_thread_that_was_kept_from_running(monkeypatch):
    now = _time.get_time

    def held() -> float:
        time.sleep(0.01)
        return now()

    async with App().run_test() as pilot:
        called = []
        monkeypatch.setattr(_time, "get_time", held)
        later(pilot.app, 0.001, lambda: called.append(True))
        while not called:
            await pilot.pause()


async def test_nothing_is_called_once_the_app_has_ended():
    called = []
    async with App().run_test() as pilot:
        later(pilot.app, 0.01, lambda: called.append(True))
    time.sleep(0.02)
    assert not called
