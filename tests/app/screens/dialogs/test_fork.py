"""Forking a chat: any message, a new tab right after it, nothing of the first chat changed."""

from app.chat.conversation import Status
from app.screens.dialogs.pick_message import PickMessage
from tests.app.driving import ready, shown_answer, wait_until
from tests.app.screens.chat.test_answers import ask, texts


async def forked(pilot, *keys: str):
    app = pilot.app
    tabs = len(app.chat_screen.tabs.sessions)
    await pilot.press("f9")
    await wait_until(pilot, lambda: isinstance(app.screen, PickMessage))
    await wait_until(pilot, lambda: app.screen.query_one("#messages").highlighted is not None)
    await pilot.press(*keys)
    await wait_until(pilot, lambda: len(app.chat_screen.tabs.sessions) == tabs + 1)
    await wait_until(pilot, lambda: app.screen is app.chat_screen)


async def test_a_fork_opens_right_after_its_chat_with_everything_up_to_the_message(make_app, engine):
    app = make_app()
    async with app.run_test(size=(130, 30)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "first question", "first answer")
        await ask(pilot, engine, "second question", "second answer")
        first = screen.active
        first.conversation.system_prompt, first.conversation.max_tokens = "Be brief.", 7
        await pilot.press("ctrl+t")
        await ready(pilot)
        await pilot.press("alt+1")
        await forked(pilot, "up", "up", "enter")
        assert [s.conversation.title for s in screen.tabs.sessions] == [
            "first question",
            "first question (fork)",
            "New chat",
        ]
        fork = screen.active
        assert fork is screen.tabs.sessions[1]
        await wait_until(pilot, lambda: fork.model is first.model)
        assert texts(screen) == ["first question", "first answer"]
        assert (fork.conversation.system_prompt, fork.conversation.max_tokens) == ("Be brief.", 7)
        assert len(first.conversation.path()) == 4
        assert len(engine.generations) == 2
        await wait_until(pilot, lambda: shown_answer(screen.deck.transcript) == "first answer")
        await ask(pilot, engine, "another way", "third answer")
        messages, kept = fork.model.local.template.calls[-1]
        assert messages[1:] == [
            ("user", "first question"),
            ("assistant", "first answer"),
            ("user", "another way"),
        ]
        assert kept[2].ids == (0, 1)
        await forked(pilot, "enter")
        assert screen.active.conversation.title == "first question (fork 2)"
    app.end_services()
    again = make_app()
    async with again.run_test(size=(130, 30)) as pilot:
        screen = await ready(pilot)
        titles = [session.conversation.title for session in screen.tabs.sessions]
        assert titles[:3] == ["first question", "first question (fork)", "first question (fork 2)"]
        assert texts(screen)[-1] == "third answer"
    again.end_services()


async def test_a_fork_of_a_running_answer_keeps_what_is_there_and_the_answer_goes_on(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        running = await ask(pilot, engine, "question")
        running.feed("half")
        await wait_until(pilot, lambda: texts(screen) == ["question", "half"])
        await forked(pilot, "f9")
        assert texts(screen) == ["question", "half"]
        assert screen.active.conversation.last_answer().status is Status.STOPPED
        running.feed(" and half")
        first = screen.tabs.sessions[0].conversation
        await wait_until(pilot, lambda: first.last_answer().text == "half and half")
        assert texts(screen) == ["question", "half"]


async def test_an_empty_chat_has_nothing_to_fork(make_app):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await pilot.press("f9")
        await wait_until(pilot, lambda: any("no message to fork" in n.message for n in app._notifications))
        assert app.screen is screen and len(screen.tabs.sessions) == 1
