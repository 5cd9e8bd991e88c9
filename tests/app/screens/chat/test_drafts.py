"""What was written and not sent stays: while a message is edited, and when its tab is closed."""

import threading

import pytest
from textual.events import Key

from app.screens.chat import screen as chat_screen
from engine import RequestError
from tests.app.driving import ready, say, say_to_a_slow_template, wait_until
from tests.app.screens.chat.test_answers import ask, texts


@pytest.fixture(autouse=True)
def saved_at_once(monkeypatch):
    monkeypatch.setattr(chat_screen, "_DRAFT_SECONDS", 0.01)


async def edit_over_a_draft(pilot, engine):
    """Begin a message, then edit the last one, and wait until the composer was looked at."""
    screen = await ready(pilot)
    await ask(pilot, engine, "question", "answer")
    screen.composer.insert("half a message")
    await pilot.press("f4")
    await wait_until(pilot, lambda: screen.composer.text == "question")
    screen.composer.insert(" again")
    await wait_until(pilot, lambda: screen.active.writing.draft.text == "question again")
    return screen


async def test_escape_brings_the_draft_back(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await edit_over_a_draft(pilot, engine)
        assert screen.active.conversation.draft == "half a message"
        await pilot.press("escape")
        await wait_until(pilot, lambda: screen.composer.text == "half a message")
        assert not screen.composer.has_class("-editing")


async def test_sending_the_other_wording_brings_the_draft_back(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await edit_over_a_draft(pilot, engine)
        screen.composer.post_message(Key("enter", None))
        screen.composer.post_message(Key("x", "x"))
        await wait_until(pilot, lambda: texts(screen)[0] == "question again")
        assert screen.composer.text == screen.active.conversation.draft == "half a message\n\nx"


async def test_another_wording_that_is_refused_comes_back_before_the_draft(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await edit_over_a_draft(pilot, engine)

        def broken(messages, **_):
            raise RequestError("no")

        screen.active.model.local.template.prompt = broken
        await pilot.press("enter")
        await wait_until(pilot, lambda: screen.composer.text == "question again")
        assert screen.composer.has_class("-editing")
        assert screen.active.conversation.draft == "half a message"
        await pilot.press("escape")
        await wait_until(pilot, lambda: screen.composer.text == "half a message")


async def test_a_visit_to_another_tab_changes_neither(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await edit_over_a_draft(pilot, engine)
        await pilot.press("ctrl+t")
        await ready(pilot)
        assert screen.composer.text == "" and not screen.composer.has_class("-editing")
        await pilot.press("alt+1")
        await wait_until(pilot, lambda: screen.composer.text == "question again")
        assert screen.composer.has_class("-editing")
        await pilot.press("escape")
        await wait_until(pilot, lambda: screen.composer.text == "half a message")


async def test_closing_the_tab_while_editing_keeps_the_draft_with_the_chat(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await edit_over_a_draft(pilot, engine)
        closed = screen.active.conversation.id
        await pilot.press("alt+w")
        await wait_until(pilot, lambda: screen.active.conversation.id != closed)
        await screen.open_in_tab(app.context.history.load(closed), 0)
        await wait_until(pilot, lambda: screen.composer.text == "half a message")


async def test_a_restart_while_editing_brings_the_draft_back(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        await edit_over_a_draft(pilot, engine)
    app.end_services()
    again = make_app()
    async with again.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await wait_until(pilot, lambda: screen.composer.text == "half a message")
    again.end_services()


async def closed_and_reopened(app, pilot) -> None:
    """Close the tab in front and open its chat again out of the history."""
    screen = app.chat_screen
    closed = screen.active
    await screen.close(closed)
    await wait_until(pilot, lambda: screen.active is not closed)
    await screen.open_in_tab(app.context.history.load(closed.conversation.id), 0)


async def test_what_waits_for_a_model_comes_back_as_the_draft_of_a_closed_tab(make_app, engine):
    gate = engine.load_gates["pocket-46m-q5_k_s.gguf"] = threading.Event()
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        await wait_until(pilot, lambda: app.chat_screen and app.chat_screen.tabs.sessions)
        screen = app.chat_screen
        await wait_until(pilot, lambda: screen.active.models.loading)
        await say(pilot, "early")
        await say(pilot, "too")
        await wait_until(pilot, lambda: screen.active.queued == ["early", "too"])
        screen.composer.insert("begun")
        await closed_and_reopened(app, pilot)
        await wait_until(pilot, lambda: screen.composer.text == "early\n\ntoo\n\nbegun")
        gate.set()
        await ready(pilot)
        assert not engine.generations


async def test_what_is_being_encoded_and_what_waits_for_it_come_back_too(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        gate = await say_to_a_slow_template(pilot)
        await say(pilot, "next")
        await wait_until(pilot, lambda: screen.active.queued == ["next"])
        await closed_and_reopened(app, pilot)
        await wait_until(pilot, lambda: screen.composer.text == "slow one\n\nnext")
        gate.set()


async def test_what_waits_its_turn_is_saved_while_it_waits_and_no_longer(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await say(pilot, "first")
        await wait_until(pilot, lambda: engine.generations)
        await say(pilot, "second")
        await say(pilot, "third")
        await wait_until(pilot, lambda: screen.active.conversation.draft == "second\n\nthird")
        screen.composer.insert("begun")
        await wait_until(pilot, lambda: screen.active.conversation.draft == "second\n\nthird\n\nbegun")
        engine.generations[0].finish()
        await wait_until(pilot, lambda: len(engine.generations) == 2)
        await wait_until(pilot, lambda: screen.active.conversation.draft == "third\n\nbegun")
        engine.generations[1].finish()
        await wait_until(pilot, lambda: len(engine.generations) == 3)
        await wait_until(pilot, lambda: screen.active.conversation.draft == "begun")
        assert screen.composer.text == "begun"
