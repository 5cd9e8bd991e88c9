"""Several answers at once: watched side by side, one goes into the chat, the others are its alternatives."""

import pytest
from textual.widgets import Static

from app.chat.conversation import Status
from app.screens.compare.alternatives import AlternativesView
from app.screens.compare.column import AnswerColumn
from app.screens.dialogs.tools.ask_call import AskCallScreen
from app.widgets.lines import LineWidget
from tests.app.driving import plain, ready, say, shown_answer, wait_until
from tests.app.screens.chat.test_answers import ask, texts
from tests.app.tools.scripted import HERMES, ScriptedServers, call_text


async def fanned(pilot, command: str) -> AlternativesView:
    """Call a fan-out and wait for its columns."""
    await say(pilot, command)
    app = pilot.app
    await wait_until(pilot, lambda: isinstance(app.screen, AlternativesView))
    return app.screen


async def lead(pilot, engine, first: int, count: int, text: str = "the beginning") -> list:
    """Have the first answer read the prompt; the others are asked for then. Returns all streams."""
    await wait_until(pilot, lambda: len(engine.generations) == first + 1)
    engine.generations[first].feed(text)
    await wait_until(pilot, lambda: len(engine.generations) == first + count)
    session = pilot.app.chat_screen.active
    await wait_until(pilot, lambda: len(session.running) == count and session._task is None)
    return engine.generations[first:]


def shown(view) -> list[str]:
    return [shown_answer(column.transcript) for column in view.query(AnswerColumn)]


def said(app, words: str) -> bool:
    return any(words in note.message for note in app._notifications)


def heads(view) -> list[str]:
    return [plain(head) for head in view.query(".head").results(LineWidget)]


async def test_the_first_answer_reads_the_prompt_for_all_and_one_is_chosen(make_app, engine):
    app = make_app()
    async with app.run_test(size=(120, 30)) as pilot:
        screen = await ready(pilot)
        view = await fanned(pilot, "/fan seeds 1 2 3: What is a tern?")
        await wait_until(pilot, lambda: engine.generations)
        assert len(engine.generations) == 1, "the others wait until the prompt has been read"
        streams = await lead(pilot, engine, 0, 3, "one")
        assert [stream.request.sampling.seed for stream in streams] == [1, 2, 3]
        assert len({stream.request.prompt_ids for stream in streams}) == 1
        for stream, text in zip(streams, ("", "two", "three"), strict=True):
            stream.feed(text)
        await wait_until(
            pilot,
            lambda: shown(view) == ["one", "two", "three"],
        )
        assert [head.split("  ")[0] for head in heads(view)] == ["1 seed 1", "2 seed 2", "3 seed 3"]
        for stream in streams[:2]:
            stream.finish()
        await pilot.press("2")
        await wait_until(pilot, lambda: app.screen is screen and not screen.active.busy)
        assert texts(screen) == ["What is a tern?", "two"]
        siblings = screen.active.conversation.siblings(screen.active.conversation.leaf)
        assert [(node.text, node.status) for node in siblings] == [
            ("one", Status.COMPLETE),
            ("two", Status.COMPLETE),
            ("three", Status.STOPPED),
        ]
        await wait_until(pilot, lambda: shown_answer(screen.deck.transcript) == "two")
    app.end_services()
    again = make_app()
    async with again.run_test(size=(120, 30)) as pilot:
        screen = await ready(pilot)
        assert texts(screen) == ["What is a tern?", "two"]
        await pilot.press("alt+s")
        await wait_until(pilot, lambda: isinstance(again.screen, AlternativesView))
        await wait_until(
            pilot,
            lambda: shown(again.screen) == ["one", "two", "three"],
        )
    again.end_services()


async def test_the_message_in_the_composer_is_answered_and_escape_stops_then_leaves(make_app, engine):
    app = make_app()
    async with app.run_test(size=(60, 15)) as pilot:
        screen = await ready(pilot)
        screen.composer.insert("What is a tern?")
        await pilot.press("alt+a")
        await wait_until(pilot, lambda: isinstance(app.screen, AlternativesView))
        view = app.screen
        assert screen.composer.text == ""
        await lead(pilot, engine, 0, 4)
        columns = list(view.query(AnswerColumn))
        assert [column.display for column in columns] == [True, True, False, False]
        await pilot.press("left")
        await wait_until(pilot, lambda: [c.display for c in columns] == [False, False, True, True])
        await pilot.press("escape")
        await wait_until(pilot, lambda: not screen.active.busy)
        assert app.screen is view
        await wait_until(pilot, lambda: "■" in heads(view)[0])
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is screen)
        answers = screen.active.conversation.siblings(screen.active.conversation.leaf)
        assert [node.text for node in answers] == ["the beginning", "", "", ""]
        assert texts(screen) == ["What is a tern?", "the beginning"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("/fan often", "'often' is not known"),
        ("/fan models nothing such: What?", "is named 'nothing'"),
        ("/fan 3", "no message yet"),
    ],
)
async def test_what_cannot_be_says_why_and_stays_written(make_app, engine, command, words):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        await say(pilot, command)
        await wait_until(pilot, lambda: said(app, words))
        assert app.screen is screen and not engine.generations
        await wait_until(pilot, lambda: screen.composer.text == command)


async def test_what_may_stand_behind_the_command_is_offered(make_app, engine):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        screen.composer.focus()
        await pilot.press(*"/fan se")
        await wait_until(pilot, lambda: "/fan seeds 1 2 3" in plain(screen.composer.completions))
        await pilot.press("enter", *"7 8", "enter")
        await wait_until(pilot, lambda: said(app, "no message yet"))
        assert screen.composer.text == "/fan seeds 7 8"


async def test_closed_columns_are_opened_again_while_answers_are_written(make_app, engine):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        await fanned(pilot, "/fan seeds 1 2: question")
        streams = await lead(pilot, engine, 0, 2, "first")
        await pilot.press("q")
        await wait_until(pilot, lambda: app.screen is screen)
        assert screen.active.busy
        streams[1].feed("second")
        await pilot.press("alt+s")
        await wait_until(pilot, lambda: isinstance(app.screen, AlternativesView))
        view = app.screen
        await wait_until(
            pilot,
            lambda: shown(view) == ["first", "second"],
        )
        for stream in streams:
            stream.finish()
        await pilot.click("#column_2")
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.screen is screen and not screen.active.busy)
        assert texts(screen) == ["question", "second"]


async def test_without_alternatives_there_is_nothing_to_show(make_app, engine):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "question", "answer")
        await pilot.press("alt+s")
        await wait_until(
            pilot, lambda: any("No answer here has alternatives" in n.message for n in app._notifications)
        )
        assert app.screen is screen


async def test_calls_of_answers_side_by_side_are_asked_about_over_their_columns(make_app, engine):
    app = make_app()
    async with app.run_test(size=(120, 30)) as pilot:
        screen = await ready(pilot)
        session = screen.active
        session.tools._servers = ScriptedServers()
        session.conversation.tools = ("files",)
        session.model.local.template.tool_format = HERMES
        view = await fanned(pilot, "/fan seeds 1 2: What is in a.txt?")
        first, second = await lead(pilot, engine, 0, 2, "I look. ")
        for stream in (first, second):
            stream.feed(call_text())
            stream.finish()
        await wait_until(pilot, lambda: isinstance(app.screen, AskCallScreen))
        heading = str(app.screen.query_one(".heading", Static).render())
        assert heading.startswith("Answer 1, seed 1, asks for read of files")
        await wait_until(pilot, lambda: "asking" in heads(view)[0] and "waiting" in heads(view)[1])
        await pilot.press("down", "enter")
        await wait_until(pilot, lambda: session.tools.asking is not None and "2" in session.tools.asking.who)
        await wait_until(pilot, lambda: isinstance(app.screen, AskCallScreen))
        await pilot.press("up", "down", "down", "enter")
        await wait_until(pilot, lambda: len(session.running) == 2)
        for stream, text in zip(engine.generations[2:], ("It says hello.", "It says nothing."), strict=True):
            stream.feed(text)
            stream.finish()
        await wait_until(pilot, lambda: not session.busy and app.screen is view)
        await wait_until(pilot, lambda: shown(view) == ["It says hello.", "It says nothing."])
        for column, said in zip(view.query(AnswerColumn), ("5 characters", "refused"), strict=True):
            _, called, _ = column.transcript._column.items
            assert called.reasoning._head[0].endswith(said)
        await pilot.press("2")
        await wait_until(pilot, lambda: app.screen is screen)
        assert texts(screen)[-1] == "It says nothing."
        await pilot.press("alt+s")
        await wait_until(pilot, lambda: isinstance(app.screen, AlternativesView))
        await wait_until(pilot, lambda: "It says nothing." in shown(app.screen)[1])
