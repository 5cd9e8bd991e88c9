"""One chat in two windows: read in one of them until it takes the chat over."""

from app.history.store import HistoryStore
from tests.app.driving import plain, ready, say, wait_until
from tests.app.screens.chat.test_answers import ask, texts
from tests.app.screens.dialogs.test_chats import listed, talk


def said(app, words):
    return any(words in note.message for note in app._notifications)


async def elsewhere(pilot):
    """Open a chat that another window writes; return the screen, the other window and its chat."""
    screen = await ready(pilot)
    other = HistoryStore(pilot.app.context.history.path)
    birds = talk("Birds", "what is a tern", "a bird")
    other.save(birds)
    other.save_tabs([birds.id], birds.id)
    assert other.flush()
    await listed(pilot)
    await pilot.press("enter")
    await wait_until(pilot, lambda: screen.active.conversation.id == birds.id)
    return screen, other, birds


async def test_the_second_window_says_so_and_only_reads(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 24)) as pilot:
        screen, other, birds = await elsewhere(pilot)
        assert screen.active.read_only
        await wait_until(pilot, lambda: "Alt+T takes it over" in plain(screen.query_one("#notices")))
        await say(pilot, "and a gull?")
        await wait_until(pilot, lambda: screen.composer.text == "and a gull?")
        assert said(app, "Another window of tui-chat has this chat open")
        for key in ("ctrl+r", "f4", "f2", "f8", "ctrl+o", "alt+left"):
            await pilot.press(key)
            assert app.screen is screen
        assert engine.generations == []
        birds.add_user("what comes there")
        other.save(birds)
        assert other.flush()
        await wait_until(pilot, lambda: texts(screen)[-1:] == ["what comes there"])
        assert screen.composer.text == "and a gull?"
        other.close()
        await wait_until(pilot, lambda: not screen.active.read_only and screen.active.model is not None)
        await pilot.press("enter")
        await wait_until(pilot, lambda: engine.generations)


async def test_a_key_takes_the_chat_over(make_app):
    app = make_app()
    async with app.run_test(size=(100, 24)) as pilot:
        screen, other, birds = await elsewhere(pilot)
        await pilot.press("alt+t")
        await wait_until(pilot, lambda: other.takeovers_asked() == [birds.id])
        assert screen.active.read_only
        birds.add_user("the last word there")
        other.save(birds)
        other.save_tabs([birds.id], birds.id, [birds.id])
        assert other.flush()
        await wait_until(pilot, lambda: not screen.active.read_only)
        assert screen.active.conversation.path()[-1].text == "the last word there"
        assert other.written_elsewhere([birds.id]) == {birds.id} and not other.claim_writing(birds.id)
        assert other.takeovers_asked() == []
        other.close()


async def test_a_chat_that_another_window_takes_over_ends_its_answer_and_is_read(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 24)) as pilot:
        screen = await ready(pilot)
        generation = await ask(pilot, engine, "question")
        generation.feed("half an answer")
        chat_id = screen.active.conversation.id
        assert app.context.history.flush()
        other = HistoryStore(app.context.history.path)
        other.save_tabs([chat_id], chat_id, [chat_id])
        assert not other.claim_writing(chat_id)
        other.ask_takeover(chat_id)
        await wait_until(pilot, lambda: screen.active.read_only)
        await wait_until(pilot, lambda: said(app, "goes on in another window"))
        assert other.claim_writing(chat_id)
        assert [node.text for node in other.load(chat_id).path()] == ["question", "half an answer"]
        other.close()


async def test_a_chat_of_the_last_time_that_is_open_elsewhere_is_read(make_app):
    app = make_app()
    async with app.run_test(size=(100, 24)) as pilot:
        screen = await ready(pilot)
        birds = talk("Birds", "what is a tern", "a bird")
        await screen.open_in_tab(birds, 0)
        path = app.context.history.path
    app.end_services()
    # Windows are numbered in the order in which they open, each on a thread of its own: this one is first.
    other = HistoryStore(path)
    assert birds.id in other.list_open_tabs().ids
    holder = HistoryStore(path)
    holder.save_tabs([birds.id], birds.id)
    assert holder.flush()
    other.close()
    again = make_app()
    async with again.run_test(size=(100, 24)) as pilot:
        await wait_until(pilot, lambda: again.chat_screen and again.chat_screen.tabs.sessions)
        assert [s.read_only for s in again.chat_screen.tabs.sessions if s.conversation.id == birds.id] == [
            True
        ]
    again.end_services()
    holder.close()


async def test_a_chat_named_on_the_command_line_is_in_front(make_app):
    app = make_app()
    async with app.run_test(size=(100, 24)) as pilot:
        await ready(pilot)
        birds, fish = talk("Birds", "q", "a"), talk("Fish", "q", "a")
        app.context.history.save(birds)
        await app.chat_screen.open_in_tab(fish, 1)
    app.end_services()
    again = make_app(chat=birds.id)
    async with again.run_test(size=(100, 24)) as pilot:
        screen = await ready(pilot)
        assert screen.active.conversation.id == birds.id
        assert fish.id in [session.conversation.id for session in screen.tabs.sessions]
    again.end_services()


async def test_the_history_is_asked_only_where_something_was_written(make_app, monkeypatch):
    app = make_app()
    async with app.run_test(size=(100, 24)) as pilot:
        screen = await ready(pilot)
        history, asked = app.context.history, []
        monkeypatch.setattr(history, "takeovers_asked", lambda: asked.append(1) or [])
        assert history.flush()
        screen._looking, screen._written = False, history.last_written()
        screen._skipped = 0
        screen._look()
        assert not screen._looking and screen._skipped == 1
        other = HistoryStore(history.path)
        other.save(talk("Birds", "what is a tern", "a bird"))
        assert other.flush()
        screen._look()
        await wait_until(pilot, lambda: asked and not screen._looking)
        other.close()
