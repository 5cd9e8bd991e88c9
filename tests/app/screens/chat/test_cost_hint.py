"""What a long message will cost is said below it while it is written, and no key waits for that."""

import threading

import pytest

from app.screens.chat.writing import cost_hint
from tests.app.driving import ready, wait_until

LONG = "a word " * 300


@pytest.fixture(autouse=True)
def short_pause(monkeypatch):
    monkeypatch.setattr(cost_hint, "_PAUSE", 0.001)


def said(screen):
    return str(screen.composer.border_subtitle)


async def test_a_long_message_says_its_cost_until_it_is_gone(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        screen.composer.paste("short")
        screen.composer.paste(LONG)
        await wait_until(pilot, lambda: said(screen))
        assert said(screen) == "600 tokens · 1 MB KV"
        assert not screen.composer.has_class("-long")
        screen.composer.load_text("")
        await wait_until(pilot, lambda: said(screen) == "")


async def test_it_warns_when_the_context_is_nearly_full_and_says_what_will_happen(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        screen.composer.paste("word " * 1800)
        await wait_until(pilot, lambda: "fills 88% of the context" in said(screen))
        assert screen.composer.has_class("-long")
        screen.composer.paste(" word" * 900)
        await wait_until(pilot, lambda: "room for 2,048: it will come back unsent" in said(screen))


async def test_keys_do_not_wait_for_a_count(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await wait_until(pilot, lambda: engine.models and screen.active.model is not None)
        tokenizer = engine.models[0].tokenizer
        tokenizer.gate = threading.Event()
        try:
            screen.composer.paste(LONG)
            await wait_until(pilot, lambda: tokenizer.counted)
            await pilot.press("x", "y")
            assert screen.composer.text.endswith("xy") and said(screen) == ""
        finally:
            tokenizer.gate.set()
        await wait_until(pilot, lambda: said(screen).startswith("601 tokens"))


async def test_another_chat_does_not_show_it(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        screen.composer.paste(LONG)
        await wait_until(pilot, lambda: said(screen).startswith("600 tokens"))
        await pilot.press("ctrl+t")
        await wait_until(pilot, lambda: len(screen.tabs.sessions) == 2 and said(screen) == "")
        await pilot.press("alt+1")
        await wait_until(pilot, lambda: said(screen).startswith("600 tokens"))


async def test_a_text_that_cannot_be_counted_ends_nothing(make_app, engine, monkeypatch):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await wait_until(pilot, lambda: engine.models and screen.active.model is not None)
        tokenizer, tried = engine.models[0].tokenizer, []

        def fail(text):
            tried.append(text)
            raise ValueError("no such word")

        with monkeypatch.context() as patch:
            patch.setattr(type(tokenizer), "encode_content", lambda _self, text: fail(text))
            screen.composer.paste(LONG)
            await wait_until(pilot, lambda: tried)
            await wait_until(pilot, lambda: not screen.workers)
        screen.composer.type_in("x")
        await wait_until(pilot, lambda: said(screen).startswith("601 tokens"))
