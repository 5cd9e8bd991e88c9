"""Contexts on disk, through the app itself: real engine, built-in model, a restart in between."""

from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from app.cli import program
from app.models.make import make_engine
from app.settings.file import EngineSettings, ModelSettings, Settings
from app.settings.paths import locations
from app.widgets.live_panel import LivePanel
from app.window.app import ChatApp
from engine import SavedKV
from tests.app.driving import plain, ready, say, wait_until

LONG = "Tell me about this: " + "The river runs past the old mill and the town. " * 60


@pytest.fixture(scope="module")
def kernels(tmp_path_factory) -> Path:
    """Compiled once."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def running(kernels, small_model):
    """The app as a reader starts it, with its tabs of the last time."""

    @asynccontextmanager
    async def run(model: str = str(small_model)):
        settings = Settings(engine=EngineSettings(device="cpu"), models=ModelSettings(default=model))
        app = ChatApp(
            settings,
            engine_factory=lambda: make_engine(
                settings.engine, keep_kv=True, threads=1, cache_folder=kernels
            ),
            places=locations(),
        )
        app.animation_level = "none"
        async with app.run_test(size=(130, 40)) as pilot:
            yield app, pilot, await ready(pilot)
        app.end_services()

    return run


async def ask(pilot, screen, text: str):
    """Ask, and return what the answer cost."""
    session = screen.active
    session.conversation.max_tokens = 4
    session.conversation.sampling = replace(session.conversation.sampling, temperature=0.0)
    before = len(session.conversation.path())
    await say(pilot, text)
    await wait_until(pilot, lambda: len(session.conversation.path()) == before + 2 and not session.busy)
    stats = session.conversation.last_answer().stats
    assert stats is not None
    return stats


@pytest.fixture
def saved(home, nothing_to_fetch) -> Iterator[SavedKV]:
    return SavedKV(locations().kv_folder)


async def first_turn(running, *model: str) -> str:
    async with running(*model) as (_, pilot, screen):
        stats = await ask(pilot, screen, LONG)
        assert stats.prompt_tokens > 512 and stats.cached_tokens == 0
        return screen.active.conversation.id


async def test_a_chat_goes_on_after_a_restart_with_its_context_from_the_disk(saved, running):
    chat = await first_turn(running, "builtin")
    assert saved.nbytes > 0
    async with running("builtin") as (app, pilot, screen):
        assert screen.active.conversation.id == chat
        stats = await ask(pilot, screen, "And then?")
        disk = screen.context.engine.stats().kv_disk
        assert stats.cached_tokens == disk.tokens_restored > 512
        await wait_until(pilot, lambda: "tokens back" in plain(app.screen.query_one(LivePanel)))


async def test_a_damaged_file_is_read_again_and_the_panel_says_why(saved, running):
    await first_turn(running)
    (file,) = locations().kv_folder.glob("*.kv")
    content = bytearray(file.read_bytes())
    content[1000] ^= 1
    file.write_bytes(content)
    async with running() as (app, pilot, screen):
        stats = await ask(pilot, screen, "And then?")
        assert stats.cached_tokens == 0
        await wait_until(pilot, lambda: "KV on disk was damaged" in plain(app.screen.query_one(LivePanel)))


async def test_a_deleted_chats_context_goes_with_it(saved, running):
    chat = await first_turn(running)
    async with running() as (_, pilot, screen):
        summary = screen.context.history.summary(chat)
        assert await screen.delete_chat(summary)
        assert saved.nbytes > 0
        screen._delete_for_good(screen._deleted[-1])
        await wait_until(pilot, lambda: not list(locations().kv_folder.iterdir()))


async def test_the_context_of_a_chat_that_was_deleted_before_goes_at_a_start(saved, running, monkeypatch):
    chat = await first_turn(running)
    async with running() as (_, pilot, screen):
        assert await screen.delete_chat(screen.context.history.summary(chat))
    assert saved.nbytes > 0
    monkeypatch.setattr("app.history.store.UNDO_SECONDS", -1.0)
    async with running() as (_, pilot, _screen):
        await wait_until(pilot, lambda: saved.nbytes == 0)


async def test_all_contexts_can_be_deleted_by_hand(saved, running, capsys):
    await first_turn(running)
    assert program.main(["where"]) == 0
    assert "contexts" in capsys.readouterr().out and saved.nbytes > 0
    async with running() as (app, pilot, screen):
        command = next(c for c in app.get_system_commands(screen) if c.title == "Delete saved contexts")
        command.callback()
        await wait_until(pilot, lambda: any("contexts are deleted" in n.message for n in app._notifications))
        assert saved.nbytes == 0
    assert program.main(["where", "--delete-contexts"]) == 0
    assert "contexts are deleted" in capsys.readouterr().out
