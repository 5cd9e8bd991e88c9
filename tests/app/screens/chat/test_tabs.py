"""Tabs: opening, closing, switching, and what the bar says of tabs in the background."""

import asyncio
import threading

from textual.events import Key, Paste

from app.chat.events import TabState
from app.models.choice import ModelChoiceError
from app.screens import context
from app.screens.dialogs.chats import Found
from app.screens.dialogs.confirm import ConfirmScreen
from app.screens.dialogs.rename import RenameScreen
from app.settings.file import ModelSettings, Settings
from tests.app.driving import bar_text, chat, ready, say, shown_answer, wait_until
from tests.app.screens.chat.test_answers import ask


async def test_a_new_tab_opens_in_front_and_shares_the_model(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await pilot.press("ctrl+t")
        await ready(pilot)
        assert len(screen.tabs.sessions) == 2 and screen.active is screen.tabs.sessions[1]
        assert screen.tabs.sessions[0].model is screen.tabs.sessions[1].model
        assert len(engine.models) == 1


async def test_keys_and_mouse_switch_tabs_and_keep_drafts(make_app):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        screen.composer.insert("half a thought")
        await pilot.press("ctrl+t")
        await ready(pilot)
        assert screen.composer.text == ""
        await pilot.press("ctrl+pageup")
        assert screen.composer.text == "half a thought"
        await pilot.press("alt+2")
        assert screen.active is screen.tabs.sessions[1]
        await pilot.click("#tabs", offset=(4, 0))
        await wait_until(pilot, lambda: screen.active is screen.tabs.sessions[0])
        await pilot.press("ctrl+pagedown", "ctrl+pagedown")
        await wait_until(pilot, lambda: screen.active is screen.tabs.sessions[0])


async def test_the_plus_and_the_cross_are_buttons(make_app):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await pilot.click("#tabs", offset=(bar_text(app).index("+"), 0))
        await wait_until(pilot, lambda: len(screen.tabs.sessions) == 2)
        await ready(pilot)
        await pilot.click("#tabs", offset=(bar_text(app).index("×"), 0))
        await wait_until(pilot, lambda: len(screen.tabs.sessions) == 1)


async def test_closing_asks_while_the_tab_answers(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await pilot.press("ctrl+t")
        await ready(pilot)
        await say(pilot, "hello")
        await wait_until(pilot, lambda: engine.generations)
        await pilot.press("alt+w")
        await wait_until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("escape")
        assert len(screen.tabs.sessions) == 2 and engine.generations[0].finished is None
        await pilot.press("alt+w")
        await wait_until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.click("#yes")
        await wait_until(pilot, lambda: len(screen.tabs.sessions) == 1)
        assert engine.generations[0].finished is not None


async def test_closing_the_last_tab_opens_an_empty_one(make_app):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        first = screen.active
        await pilot.press("alt+w")
        await wait_until(pilot, lambda: screen.tabs.sessions != [first])
        assert len(screen.tabs.sessions) == 1


async def test_renaming(make_app):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await pilot.press("f2")
        await wait_until(pilot, lambda: isinstance(app.screen, RenameScreen))
        await pilot.press(*"Fish", "enter")
        await wait_until(pilot, lambda: screen.active.conversation.title == "Fish")
        await wait_until(pilot, lambda: "Fish" in bar_text(app))


async def test_all_tabs_generate_at_once_and_the_background_one_is_marked_unread(make_app, engine):
    app = make_app()
    async with app.run_test(size=(130, 30)) as pilot:
        screen = await ready(pilot)
        await say(pilot, "first question")
        await wait_until(pilot, lambda: len(engine.generations) == 1)
        await pilot.press("ctrl+t")
        await ready(pilot)
        await say(pilot, "second question")
        await wait_until(pilot, lambda: len(engine.generations) == 2)
        back, front = screen.tabs.sessions
        for generation in engine.generations:
            generation.feed("some words")
        await wait_until(pilot, lambda: back.state is front.state is TabState.GENERATING)
        engine.generations[0].finish()
        await wait_until(pilot, lambda: not back.busy)
        assert back.unread and not front.unread
        await wait_until(pilot, lambda: "●" in bar_text(app))
        await pilot.press("alt+1")
        await wait_until(pilot, lambda: not back.unread)
        transcript = screen.deck.transcript
        assert transcript is not None
        assert shown_answer(transcript) == "some words"


async def test_a_hidden_tab_touches_no_widget_while_it_streams(make_app, engine, monkeypatch):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await say(pilot, "question")
        await wait_until(pilot, lambda: engine.generations)
        hidden = screen.deck.transcript
        await pilot.press("ctrl+t")
        await ready(pilot)
        calls = []
        monkeypatch.setattr(hidden, "append_text", lambda *a, **k: calls.append(a))
        engine.generations[0].feed("unseen")
        node = screen.tabs.sessions[0].conversation.last_answer()
        await wait_until(pilot, lambda: node.text == "unseen")
        assert calls == []


async def test_many_tabs_scroll_so_that_the_active_one_is_visible(make_app):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        for number in range(11):
            await pilot.press("ctrl+t")
            screen.active.rename(f"tab number {number}")
        await ready(pilot)
        await wait_until(pilot, lambda: "tab num" in bar_text(app) and bar_text(app).startswith("‹"))
        assert len(bar_text(app)) <= 80
        await pilot.press("alt+1")
        await wait_until(pilot, lambda: "›" in bar_text(app))
        assert "▎" in bar_text(app)


async def test_chats_are_back_after_a_restart_in_order_with_the_active_one(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        await say(pilot, "remember me")
        await wait_until(pilot, lambda: engine.generations)
        engine.generations[0].feed("I will")
        engine.generations[0].finish()
        await wait_until(pilot, lambda: not chat(app).active.busy)
        await pilot.press("ctrl+t")
        await ready(pilot)
        chat(app).active.rename("other")
        chat(app).composer.insert("a draft")
        await pilot.press("alt+1")
    app.end_services()
    again = make_app()
    async with again.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        assert [s.conversation.title for s in screen.tabs.sessions] == ["remember me", "other"]
        assert screen.active is screen.tabs.sessions[0]
        assert [node.text for node in screen.active.conversation.path()] == ["remember me", "I will"]
        await pilot.press("alt+2")
        await wait_until(pilot, lambda: screen.composer.text == "a draft")
    again.end_services()


async def test_keys_pressed_before_a_switch_belong_to_the_chat_they_were_pressed_in(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await pilot.press("ctrl+t")
        await ready(pilot)
        first, second = screen.tabs.sessions
        screen.composer.insert("for the second")
        screen.composer.post_message(Key("enter", None))
        screen.composer.post_message(Key("x", "x"))
        await screen.action_previous_tab()
        await wait_until(pilot, lambda: engine.generations)
        assert [node.text for node in second.conversation.path()][:1] == ["for the second"]
        assert second.writing.draft.text == "x" and screen.active is first
        assert not first.conversation.nodes and screen.composer.text == ""


async def test_folders_are_read_once_for_the_default_model_and_again_after_the_picker(
    make_app, engine, monkeypatch
):
    reads = []

    def search(name, folders):
        reads.append(name)
        raise ModelChoiceError

    monkeypatch.setattr(context, "resolve_model", search)
    app = make_app(Settings(models=ModelSettings(default="tern")))
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        for count in range(2, 5):
            await pilot.press("ctrl+t")
            await wait_until(pilot, lambda n=count: len(chat(app).tabs.sessions) == n)
        assert reads == ["tern"]
        await pilot.press("ctrl+o")
        await wait_until(pilot, lambda: app.screen is not chat(app))
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is chat(app))
        await pilot.press("ctrl+t")
        await wait_until(pilot, lambda: len(chat(app).tabs.sessions) == 5)
        assert reads == ["tern", "tern"]


async def test_keys_pressed_while_a_tab_comes_to_the_front_belong_to_it(make_app, engine, monkeypatch):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        screen.composer.insert("first")
        await pilot.press("ctrl+t")
        await ready(pilot)
        first, second = screen.tabs.sessions
        painted = asyncio.Event()
        show = screen.deck.show

        async def slow(*args):
            await painted.wait()
            await show(*args)

        monkeypatch.setattr(screen.deck, "show", slow)
        switch = asyncio.create_task(screen.activate(0))
        await wait_until(pilot, lambda: screen.tabs.position == 0)
        screen.composer.post_message(Key("x", "x"))
        await wait_until(pilot, lambda: screen.composer.text == "firstx")
        painted.set()
        await switch
        screen.keep_draft()
        assert (
            screen.composer.text == first.writing.draft.text == "firstx" and second.writing.draft.text == ""
        )


async def test_keys_pressed_while_a_kept_chat_is_read_belong_to_it(make_app, engine, monkeypatch):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "question", "answer")
        closed = screen.active
        await screen.close(closed)
        gate = threading.Event()
        load = app.context.history.load

        def slow(conversation_id):
            assert gate.wait(8)
            return load(conversation_id)

        monkeypatch.setattr(app.context.history, "load", slow)
        other = screen.active
        summary = next(s for s in app.context.history.recent(9) if s.id == closed.conversation.id)
        screen._open_kept(Found(summary))
        screen.composer.post_message(Key("x", "x"))
        screen.composer.post_message(Paste("yz"))
        await pilot.pause()
        assert screen.composer.text == ""
        gate.set()
        await wait_until(pilot, lambda: screen.active.conversation.id == closed.conversation.id)
        await wait_until(pilot, lambda: screen.composer.text == "xyz")
        assert other.writing.draft.text == ""


async def test_every_chat_keeps_its_reading_position(make_app, engine):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        for number in range(5):
            if number:
                await pilot.press("ctrl+t")
                await ready(pilot)
            await ask(pilot, engine, f"question {number}", f"line of {number}\n\n" * 60)
        await pilot.press("alt+1")
        await wait_until(pilot, lambda: screen.deck.transcript.max_scroll_y > 50)
        await pilot.press("pageup", "pageup")
        await wait_until(pilot, lambda: not screen.deck.transcript.follow)
        row = screen.deck.transcript.scroll_y
        first = screen.active
        for _ in range(2):
            # Seen again at once, with news of its own, and when its transcript was dropped meanwhile.
            await pilot.press("alt+2")
            await wait_until(pilot, lambda: screen.tabs.position == 1 and screen.deck.transcript.follow)
            first.rename("news")
            screen.deck._cards[first.conversation.id].stale = True
            await pilot.press("alt+1")
            await wait_until(pilot, lambda: screen.deck.transcript.scroll_y == row)
        for number in range(2, 6):
            await pilot.press(f"alt+{number}")
            await wait_until(pilot, lambda n=number: screen.tabs.position == n - 1)
        assert first.conversation.id not in screen.deck._cards
        await pilot.press("alt+1")
        await wait_until(pilot, lambda: screen.deck.transcript.scroll_y == row)
        await pilot.press("ctrl+end", "alt+2", "alt+1")
        await wait_until(pilot, lambda: screen.active is first and screen.deck.transcript.follow)
