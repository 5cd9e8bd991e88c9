"""Going on, editing anywhere, branches, pausing everything, and what waits its turn."""

from textual.widgets import OptionList

from app.chat.conversation import Role, Status
from app.screens.dialogs.branches import BranchesScreen
from app.screens.dialogs.pick_message import PickMessage
from app.screens.dialogs.queue import QueueScreen
from tests.app.driving import plain, ready, say, shown_answer, wait_until
from tests.app.screens.chat.test_answers import ask, texts


def said(app, words: str) -> bool:
    return any(words in note.message for note in app._notifications)


async def opened(pilot, key: str, kind: type):
    await pilot.press(key)
    app = pilot.app
    await wait_until(pilot, lambda: isinstance(app.screen, kind))
    await wait_until(pilot, lambda: app.screen.query_one(OptionList).highlighted is not None)
    return app.screen


async def writing(pilot, engine, text: str, count: int):
    """Ask, and wait until the answer is being written."""
    await say(pilot, text)
    await wait_until(pilot, lambda: len(engine.generations) == count)
    await wait_until(pilot, lambda: pilot.app.chat_screen.active.running)
    return engine.generations[-1]


async def test_a_stopped_answer_is_gone_on_with_where_it_stands(make_app, engine):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        stream = await writing(pilot, engine, "count", 1)
        stream.feed("one two")
        await wait_until(pilot, lambda: texts(screen)[-1] == "one two")
        await pilot.press("escape")
        await wait_until(pilot, lambda: not screen.active.busy)
        await pilot.press("alt+g")
        await wait_until(pilot, lambda: screen.active.running)
        assert engine.generations[1].request.answered == 2
        engine.generations[1].feed("one two")
        engine.generations[1].feed(" three")
        await wait_until(pilot, lambda: shown_answer(screen.deck.transcript) == "one two three")
        engine.generations[1].finish()
        await wait_until(pilot, lambda: not screen.active.busy)
        await pilot.press("alt+g")
        await wait_until(pilot, lambda: said(app, "stopped or cut off"))
    app.end_services()
    again = make_app()
    async with again.run_test(size=(80, 24)) as pilot:
        assert texts(await ready(pilot)) == ["count", "one two three"]
    again.end_services()


async def test_any_message_is_written_differently(make_app, engine):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "first", "eins")
        await ask(pilot, engine, "second", "zwei")
        await opened(pilot, "alt+m", PickMessage)
        await pilot.press("home", "enter")
        await wait_until(pilot, lambda: screen.composer.text == "first")
        await wait_until(pilot, lambda: "Editing an earlier message" in plain(screen.query_one("#notices")))
        await pilot.press("!", "enter")
        await wait_until(pilot, lambda: len(engine.generations) == 3 and screen.active.running)
        assert texts(screen)[:1] == ["first!"]
        engine.generations[2].finish()
        await wait_until(pilot, lambda: not screen.active.busy)
        await opened(pilot, "alt+i", BranchesScreen)
        await pilot.press("home", "enter")
        await wait_until(pilot, lambda: texts(screen) == ["first", "eins", "second", "zwei"])


async def test_an_answer_is_written_differently_and_goes_on(make_app, engine):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "first", "eins")
        await opened(pilot, "alt+m", PickMessage)
        await pilot.press("enter")
        await wait_until(pilot, lambda: "Editing an answer" in plain(screen.query_one("#notices")))
        await pilot.press("!", "enter")
        await wait_until(pilot, lambda: len(engine.generations) == 2 and screen.active.running)
        engine.generations[1].feed("eins!")
        engine.generations[1].feed(" zwei")
        engine.generations[1].finish()
        await wait_until(pilot, lambda: not screen.active.busy)
        assert texts(screen) == ["first", "eins! zwei"]
        await wait_until(pilot, lambda: shown_answer(screen.deck.transcript) == "eins! zwei")
        await pilot.press("alt+left")
        await wait_until(pilot, lambda: texts(screen) == ["first", "eins"])


async def test_a_branch_is_not_left_while_it_is_written(make_app, engine):
    app = make_app()
    async with app.run_test(size=(60, 15)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "first", "eins")
        await pilot.press("ctrl+r")
        await wait_until(pilot, lambda: screen.active.running)
        dialog = await opened(pilot, "alt+i", BranchesScreen)
        assert dialog.query_one(OptionList).option_count == 3
        await pilot.press("up", "enter")
        await wait_until(pilot, lambda: said(app, "before you go to another branch"))
        assert screen.active.conversation.nodes[screen.active.conversation.leaf].status is Status.STREAMING


async def test_all_chats_are_paused_and_go_on_with_one_key(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 24)) as pilot:
        screen = await ready(pilot)
        await writing(pilot, engine, "one", 1)
        await pilot.press("ctrl+t")
        await ready(pilot)
        await writing(pilot, engine, "two", 2)
        await pilot.press("f5")
        await wait_until(pilot, lambda: screen.active.paused)
        await pilot.press("alt+p")
        await wait_until(pilot, lambda: all(session.paused for session in screen.tabs.sessions))
        assert all(generation.held for generation in engine.generations)
        await pilot.press("alt+p")
        await wait_until(pilot, lambda: not any(session.paused for session in screen.tabs.sessions))
        assert not any(generation.held for generation in engine.generations)
        await say(pilot, "/pause_all")
        await wait_until(pilot, lambda: said(app, "Two chats paused"))


async def test_what_waits_is_edited_dropped_and_sent_now(make_app, engine):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        await pilot.press("alt+q")
        await wait_until(pilot, lambda: said(app, "No message waits here"))
        stream = await writing(pilot, engine, "first", 1)
        stream.feed("partial")
        for text in ("second", "third", "fourth"):
            await say(pilot, text)
        await wait_until(pilot, lambda: len(screen.active.queued) == 3)
        await opened(pilot, "alt+q", QueueScreen)
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.screen is screen and screen.composer.text == "second")
        assert screen.active.queued == ["third", "fourth"]
        dialog = await opened(pilot, "alt+q", QueueScreen)
        await pilot.press("delete")
        await wait_until(pilot, lambda: dialog.query_one(OptionList).option_count == 1)
        assert screen.active.queued == ["fourth"]
        await pilot.press("s")
        await wait_until(pilot, lambda: len(engine.generations) == 2 and screen.active.running)
        path = screen.active.conversation.path()
        assert [node.text for node in path if node.role is Role.USER] == ["first", "fourth"]
        assert (path[1].text, path[1].status) == ("partial", Status.STOPPED)
        assert screen.composer.text == "second", "what is being written stays"
