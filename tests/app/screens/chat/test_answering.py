"""Thinking, answers that go on and full contexts, as the reader meets them."""

from app.screens.dialogs.context_full import ContextFull
from app.screens.dialogs.tab_settings import TabSettings
from app.widgets.notice_bar import NoticeBar
from engine import Thinking, ThinkingSupport
from tests.app.driving import chat, footer_of, plain, ready, say, shown_answer, wait_until
from tests.app.screens.chat.test_answers import ask, shown_rows

SWITCH = ThinkingSupport(can_switch=True, has_thoughts=True)
WORDS = "word " * 115


def said(app) -> str:
    return " ".join(notice.message for notice in app._notifications)


def notices(screen) -> str:
    return plain(screen.query_one(NoticeBar))


async def slash(pilot, text: str) -> None:
    """Write a command and run it, past the list of completions."""
    screen = chat(pilot.app)
    screen.composer.focus()
    screen.composer.insert(text)
    await pilot.press("enter")


async def test_thinking_is_set_with_a_slash_and_reaches_the_template(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        template = screen.active.model.local.template
        template.thinking_support = SWITCH
        await slash(pilot, "/think off")
        await wait_until(pilot, lambda: "Thinking is off from the next answer on" in said(app))
        await ask(pilot, engine, "hello", "fine")
        assert template.thought == [Thinking("off")] and screen.active.conversation.thinking == Thinking(
            "off"
        )
        await slash(pilot, "/think high")
        await wait_until(pilot, lambda: "knows thinking auto, on, off: high changes nothing" in said(app))
        await slash(pilot, "/think 0")
        await wait_until(pilot, lambda: "Thinking must be auto" in said(app))
        # What could not be understood is there to be corrected.
        screen.composer.clear()
        await slash(pilot, "/think 512")
        await wait_until(pilot, lambda: screen.active.conversation.thinking == Thinking(budget=512))
        titles = [command.title for command in app.get_system_commands(screen)]
        assert "Thinking off" in titles and "Answer now" in titles and "Go on" in titles


async def test_thinking_of_a_model_without_it_is_refused_in_one_line(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await slash(pilot, "/think off")
        await wait_until(pilot, lambda: "has no switch for thinking: off changes nothing." in said(app))
        assert screen.active.conversation.thinking == Thinking()
        await pilot.press("alt+h")
        await wait_until(pilot, lambda: "Thinking is auto." in said(app))


async def test_thinking_stands_in_the_settings_of_a_chat(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 40)) as pilot:
        screen = await ready(pilot)
        screen.active.model.local.template.thinking_support = SWITCH
        await pilot.press("f8")
        await wait_until(pilot, lambda: isinstance(app.screen, TabSettings))
        hint = app.screen.query_one("#hint_thinking")
        await wait_until(pilot, lambda: "auto, on, off, or a budget in tokens" in str(hint.render()))
        field = app.screen.query_one("#thinking")
        field.value = "sometimes"
        await pilot.press("ctrl+s")
        await wait_until(pilot, lambda: "thinking must be" in str(app.screen.query_one("#problem").render()))
        field.value = "on 256"
        await pilot.press("ctrl+s")
        await wait_until(pilot, lambda: screen.active.conversation.thinking == Thinking("on", 256))


async def test_answer_now_ends_the_thoughts(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        screen.active.model.local.template.opened = True
        await pilot.press("alt+n")
        await wait_until(pilot, lambda: "There are no thoughts to end" in said(app))
        generation = await ask(pilot, engine, "why")
        generation.feed("let me see")
        # Thoughts can be ended before the first of them has come.
        await wait_until(pilot, lambda: screen.active.conversation.last_answer().reasoning == "let me see")
        assert screen.active.can_answer_now
        await slash(pilot, "/answer-now")
        await wait_until(pilot, lambda: len(engine.generations) == 2)
        engine.generations[1].again()
        engine.generations[1].feed("Because.")
        engine.generations[1].finish()
        await wait_until(pilot, lambda: not screen.active.busy)
        assert shown_answer(screen.deck.transcript) == "Because."
        assert "thought 4 tokens" in shown_rows(screen.deck.transcript)


async def test_a_stopped_answer_goes_on_in_its_place(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        generation = await ask(pilot, engine, "tell me")
        generation.feed("Once upon")
        await wait_until(pilot, lambda: shown_answer(screen.deck.transcript) == "Once upon")
        await pilot.press("escape")
        await wait_until(pilot, lambda: not screen.active.busy)
        await pilot.press("alt+g")
        await wait_until(pilot, lambda: screen.active.sequence_id == 2)
        # The engine sends what was there first.
        engine.generations[1].feed("Once upon")
        engine.generations[1].feed(" a time.")
        await wait_until(pilot, lambda: shown_answer(screen.deck.transcript) == "Once upon a time.")
        engine.generations[1].finish()
        await wait_until(pilot, lambda: not screen.active.busy)
        assert len(screen.active.conversation.path()) == 2
        assert "stopped" not in shown_rows(screen.deck.transcript)


async def test_an_answer_that_repeats_itself_says_so_and_which_key_goes_on(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        generation = await ask(pilot, engine, "tell me")
        for _ in range(12):
            generation.feed("the same line again\n")
        await wait_until(pilot, lambda: not screen.active.busy)
        node = screen.active.conversation.last_answer()
        assert "it repeated itself, Alt+G goes on all the same" in footer_of(screen.active, node.id)
        assert node.text.count("same") == 10


async def fill(pilot, engine, turns: int) -> None:
    for number in range(turns):
        await ask(pilot, engine, f"question {number} {WORDS}", f"answer {number} {WORDS}")


async def test_a_nearly_full_context_is_said_once_with_what_can_be_done(make_app, engine):
    engine.context_length = 1000
    app = make_app()
    async with app.run_test(size=(120, 30)) as pilot:
        screen = await ready(pilot)
        await fill(pilot, engine, 3)
        assert "The context is" not in notices(screen)
        await ask(pilot, engine, "question 3 " + WORDS, "short")
        await wait_until(pilot, lambda: "The context is 83% full. Alt+R trims" in notices(screen))
        await pilot.press("escape")
        await wait_until(pilot, lambda: "The context is" not in notices(screen))
        screen.beat.draw()
        assert "The context is" not in notices(screen)


async def test_a_full_context_is_asked_about_and_a_mark_shows_what_is_not_read(make_app, engine):
    engine.context_length = 1000
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await fill(pilot, engine, 4)
        await say(pilot, "and now")
        await wait_until(pilot, lambda: isinstance(app.screen, ContextFull))
        assert "tokens long" in str(app.screen.query_one("#why").render())
        await pilot.press("escape")
        await wait_until(pilot, lambda: "Waits for room in the context" in notices(screen))
        await pilot.press("alt+r")
        await wait_until(pilot, lambda: isinstance(app.screen, ContextFull))
        await pilot.press("enter")
        await wait_until(pilot, lambda: screen.active.sequence_id == 5)
        engine.generations[4].feed("yes")
        engine.generations[4].finish()
        await wait_until(pilot, lambda: not screen.active.busy)
        assert len(screen.active.conversation.path()) == 10
        marks = [item for item in screen.deck.transcript._column.items if item.role == "system"]
        assert [mark.title for mark in marks] == ["⋯ What stands above is not read any more"]


async def test_a_summary_is_folded_below_its_mark_and_a_fork_leaves_the_chat_as_it_was(make_app, engine):
    engine.context_length = 1000
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await fill(pilot, engine, 4)
        await say(pilot, "and now")
        await wait_until(pilot, lambda: isinstance(app.screen, ContextFull))
        await pilot.press("down", "down", "enter")
        await wait_until(pilot, lambda: len(screen.tabs.sessions) == 2 and len(engine.generations) == 5)
        engine.generations[4].feed("They spoke of words.")
        engine.generations[4].finish()
        await wait_until(pilot, lambda: screen.active.sequence_id == 6)
        first, fork = screen.tabs.sessions
        assert screen.active is fork and all(node.above is None for node in first.conversation.path())
        assert len(first.conversation.path()) == 8 and fork.conversation.path()[-2].text == "and now"
        transcript = screen.deck.transcript
        [mark] = [item for item in transcript._column.items if item.role == "system"]
        assert mark.title.endswith("this summary is") and mark.reasoning.text == "They spoke of words."
        assert not mark.reasoning.expanded
