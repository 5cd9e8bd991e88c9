"""Asking, stopping, asking again, and answers that fail."""

import asyncio

import pytest

from app.chat.conversation import Status
from app.screens.dialogs.context_full import ContextFull
from app.widgets.contents import context_use
from engine import FinishReason, TemplateError
from engine.api.answer_format import format_of
from tests.app.driving import (
    chat,
    footer_of,
    plain,
    ready,
    say,
    say_to_a_slow_template,
    shown_answer,
    wait_until,
)


async def ask(pilot, engine, text: str, answer: str = ""):
    """Send and, with `answer`, let it be answered; return the generation."""
    count = len(engine.generations)
    await say(pilot, text)
    await wait_until(pilot, lambda: len(engine.generations) > count)
    generation = engine.generations[-1]
    await wait_until(pilot, lambda: chat(pilot.app).active.sequence_id == generation.sequence_id)
    if answer:
        generation.feed(answer)
        generation.finish()
        await wait_until(pilot, lambda: not chat(pilot.app).active.busy)
    return generation


def shown_rows(transcript) -> str:
    rows = range(transcript.size.height)
    return "\n".join(strip.text.rstrip() for strip in map(transcript.render_line, rows))


def texts(screen) -> list[str]:
    return [node.text for node in screen.active.conversation.path()]


async def test_an_answer_streams_into_the_transcript(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        generation = await ask(pilot, engine, "hello")
        for piece in ("Hel", "lo ", "there"):
            generation.feed(piece)
        await wait_until(pilot, lambda: shown_answer(screen.deck.transcript) == "Hello there")
        generation.feed("!")
        generation.finish()
        await wait_until(pilot, lambda: not screen.active.busy)
        assert shown_answer(screen.deck.transcript) == "Hello there!"
        assert screen.active.conversation.title == "hello"
        assert generation.request.label == "New chat" or generation.request.label == "hello"


async def test_history_goes_back_as_token_ids_not_as_text(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "one", "first answer here")
        await ask(pilot, engine, "two", "second")
        messages, kept = screen.active.model.local.template.calls[-1]
        assert messages == [("user", "one"), ("assistant", "first answer here"), ("user", "two")]
        assert kept[1].ids == (0, 1, 2)


async def test_escape_stops_and_keeps_the_partial_answer(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        generation = await ask(pilot, engine, "hello")
        generation.feed("partial")
        await pilot.press("escape")
        await wait_until(pilot, lambda: not screen.active.busy)
        node = screen.active.conversation.last_answer()
        assert (node.text, node.status) == ("partial", Status.STOPPED)


async def test_messages_written_while_it_answers_wait_their_turn(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        first = await ask(pilot, engine, "one")
        await say(pilot, "two")
        await wait_until(pilot, lambda: "Waits its turn: two" in plain(screen.query_one("#notices")))
        first.finish()
        await wait_until(pilot, lambda: len(engine.generations) == 2)
        await wait_until(pilot, lambda: texts(screen) == ["one", "", "two", ""])
        assert screen.active.queued == []


async def test_stopping_gives_waiting_messages_back_to_the_composer(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "one")
        await say(pilot, "two")
        await pilot.press("escape")
        await wait_until(pilot, lambda: screen.composer.text == "two")


async def test_regenerate_adds_an_alternative_and_keys_go_between_them(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "one", "first")
        await pilot.press("ctrl+r")
        await wait_until(pilot, lambda: len(engine.generations) == 2)
        await wait_until(pilot, lambda: screen.active.sequence_id == 2)
        engine.generations[1].feed("second")
        engine.generations[1].finish()
        await wait_until(pilot, lambda: not screen.active.busy)
        assert texts(screen) == ["one", "second"]
        assert "2 of 2" in footer_of(screen.active, screen.active.conversation.leaf)
        await pilot.press("alt+left")
        assert texts(screen) == ["one", "first"]
        assert shown_answer(screen.deck.transcript) == "first"


async def test_editing_the_last_message_asks_again_and_keeps_the_old_branch(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "teh question", "answer")
        await pilot.press("f4")
        assert screen.composer.text == "teh question"
        await pilot.press("escape")
        assert screen.composer.text == ""
        await pilot.press("f4")
        screen.composer.clear()
        await ask(pilot, engine, "the question", "better")
        assert texts(screen) == ["the question", "better"]
        assert len(screen.active.conversation.nodes) == 4


async def test_an_error_is_shown_in_the_message_and_can_be_tried_again(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        generation = await ask(pilot, engine, "one")
        generation.feed("some")
        generation.finish(FinishReason.ERROR, "The logits hold NaN at position 7.")
        await wait_until(pilot, lambda: not screen.active.busy)
        footer = footer_of(screen.active, screen.active.conversation.leaf)
        assert "NaN at position 7" in footer and "Ctrl+R" in footer
        await pilot.press("ctrl+r")
        await wait_until(pilot, lambda: len(engine.generations) == 2)


@pytest.mark.parametrize(
    ("limit", "context", "note"),
    [
        (2, 2048, "token limit"),
        (3, 5, "no room"),
        (None, 5, "no room"),
        (None, 2048, "the context memory is full"),
    ],
)
async def test_an_answer_that_a_limit_cut_off_says_which(make_app, engine, limit, context, note):
    engine.context_length = context
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        screen.active.conversation.max_tokens = limit
        generation = await ask(pilot, engine, "one")
        generation.feed("a")
        generation.feed("b")
        generation.finish(FinishReason.LENGTH)
        await wait_until(pilot, lambda: not screen.active.busy)
        node = screen.active.conversation.last_answer()
        assert node.status is Status.COMPLETE
        assert note in footer_of(screen.active, node.id)
        transcript = screen.deck.transcript
        rows = [transcript.render_line(y).text.strip() for y in range(transcript.size.height)]
        assert any(row.startswith("■ cut off") and note in row for row in rows)


async def test_a_prompt_that_does_not_fit_is_said_with_numbers_and_stays_in_the_composer(make_app, engine):
    engine.context_length = 16
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await say(pilot, "word " * 20)
        await wait_until(pilot, lambda: screen.composer.text.startswith("word"))
        assert screen.active.conversation.nodes == {} and not engine.generations
        toasts = [notification.message for notification in app._notifications]
        assert any("22 tokens" in text and "16" in text for text in toasts)


@pytest.mark.parametrize(
    ("context", "limit", "words", "sent"),
    [(40, None, 33, True), (40, None, 34, False), (40, 2, 36, True), (1000, None, 934, True)],
)
async def test_a_prompt_leaves_room_for_an_answer_or_is_not_sent(
    make_app, engine, context, limit, words, sent
):
    engine.context_length = context
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        screen.active.conversation.max_tokens = limit
        await say(pilot, "word " * words)
        await wait_until(pilot, lambda: bool(engine.generations) or app._notifications)
        assert bool(engine.generations) is sent
        if not sent:
            [notice] = [notification.message for notification in app._notifications]
            assert "36 tokens" in notice and "40" in notice and "room for only 4" in notice
            assert screen.composer.text.count("word") == words


async def test_after_a_switch_to_a_smaller_context_nothing_is_sent_or_lost(make_app, engine):
    from tests.app.screens.dialogs.test_models import SMALL

    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "one " * 40, "an answer " * 20)
        engine.context_length = 64
        screen.active.open_model(SMALL.path)
        await wait_until(pilot, lambda: screen.active.model.path == SMALL.path)
        await wait_until(
            pilot,
            lambda: any("about 82 tokens" in n.message and "64" in n.message for n in app._notifications),
        )
        await say(pilot, "go on")
        await wait_until(pilot, lambda: isinstance(app.screen, ContextFull))
        why = str(app.screen.query_one("#why").render())
        assert "88 tokens long" in why and "64" in why
        await pilot.press("escape", "escape")
        await wait_until(pilot, lambda: screen.composer.text == "go on")
        assert len(engine.generations) == 1 and len(texts(screen)) == 2


async def test_another_wording_that_does_not_fit_stays_one(make_app, engine):
    engine.context_length = 40
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "short", "answer")
        await pilot.press("f4")
        screen.composer.clear()
        await say(pilot, "word " * 60)
        await wait_until(pilot, lambda: screen.composer.text.startswith("word"))
        assert screen.composer.has_class("-editing")
        assert screen.active.writing.editing == screen.active.conversation.path()[0].id
        screen.composer.clear()
        await ask(pilot, engine, "shorter", "better")
        assert texts(screen) == ["shorter", "better"]


async def test_what_a_hidden_tab_could_not_send_is_kept_with_it(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        first = await ask(pilot, engine, "one")
        await say(pilot, "two")
        await pilot.press("ctrl+t")
        await ready(pilot)
        engine.refuse = "max_tokens: 99 does not fit"
        first.finish()
        hidden = screen.tabs.sessions[0]
        await wait_until(pilot, lambda: hidden.writing.draft.text == "two")
        assert hidden.conversation.draft == "two"
        await pilot.press("alt+1")
        await wait_until(pilot, lambda: screen.composer.text == "two")


async def test_a_refused_request_and_a_broken_template_give_the_text_back(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        engine.refuse = "max_tokens: 99 does not fit"
        await say(pilot, "mine")
        await wait_until(pilot, lambda: screen.composer.text == "mine")
        engine.refuse = None

        def broken(messages, **_):
            raise TemplateError("the template [b]fails[/b]")

        screen.active.model.local.template.prompt = broken
        await pilot.press("enter")
        await wait_until(pilot, lambda: any("[b]" in n.message for n in app._notifications))
        assert screen.composer.text == "mine"


def test_leaving_does_not_wait_for_a_slow_template(make_app, engine):
    async def leave():
        async with make_app().run_test(size=(100, 30)) as pilot:
            await ready(pilot)
            return await say_to_a_slow_template(pilot)

    gate = asyncio.run(leave())
    assert not engine.generations
    gate.set()


async def test_stopping_before_the_prompt_is_encoded_cancels_and_gives_the_text_back(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        gate = await say_to_a_slow_template(pilot)
        await pilot.press("escape")
        await wait_until(pilot, lambda: screen.composer.text == "slow one")
        gate.set()
        await wait_until(pilot, lambda: engine.generations and engine.generations[0].finished)
        assert engine.generations[0].finished.reason is FinishReason.CANCELLED
        assert not screen.active.busy


async def test_copying_says_what_happened(make_app, engine):
    from app.terminal.clipboard import CopyResult

    copied = []

    def copy(text, write):
        copied.append(text)
        return CopyResult(True, "Copied it all.")

    app = make_app(copy=copy)
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        answer = "see\n\n```py\na = 1\n```\n\nand\n\n```\nb\n```\n"
        await ask(pilot, engine, "code", answer)
        await pilot.press("alt+c")
        await wait_until(pilot, lambda: copied == [answer])
        await pilot.press("f6")
        await wait_until(pilot, lambda: len(copied) == 2)
        await pilot.press("f6")
        await wait_until(pilot, lambda: len(copied) == 3)
        assert [text.strip() for text in copied[1:]] == ["a = 1", "b"]
        messages = [notification.message for notification in app._notifications]
        assert "Code block 2 of 2. Copied it all." in messages


async def test_model_text_is_never_markup(make_app, engine):
    app = make_app()
    async with app.run_test(size=(130, 30)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "[bold red]x[/] [/nope]", "[/] [link=a]b \x1b[31m")
        assert texts(screen)[0] == "[bold red]x[/] [/nope]"
        await pilot.press("ctrl+t")
        await ready(pilot)


async def test_reasoning_is_split_off(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "think", "<think>hm hm</think>\n\nyes")
        node = screen.active.conversation.last_answer()
        assert (node.reasoning, node.text) == ("hm hm", "yes")


async def test_reasoning_in_a_message_of_its_own_opens_and_folds(make_app, engine):
    marks = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>")
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        screen.active.model.local.template.answer_format = format_of("", marks)
        generation = await ask(pilot, engine, "think")
        node = screen.active.conversation.last_answer()
        for word in ("<|channel|>", "analysis", "<|message|>", "hm hm"):
            generation.feed(word, word if word in marks else "")
        await wait_until(pilot, lambda: "thinking… " in shown_rows(screen.deck.transcript))
        assert f"thinking… {node.reasoning_tokens} tokens" in shown_rows(screen.deck.transcript)
        for word in ("<|end|>", "<|start|>", "assistant", "<|channel|>", "final", "<|message|>", "yes"):
            generation.feed(word, word if word in marks else "")
        generation.finish()
        await wait_until(pilot, lambda: not screen.active.busy)
        assert (node.reasoning, node.text, node.reasoning_tokens) == ("hm hm", "yes", len(node.token_ids) - 1)
        await wait_until(
            pilot, lambda: f"▸ thought {node.reasoning_tokens} tokens" in shown_rows(screen.deck.transcript)
        )
        assert "│ hm hm" not in shown_rows(screen.deck.transcript)
        screen.deck.transcript.toggle_nearest_reasoning()
        await wait_until(pilot, lambda: "│ hm hm" in shown_rows(screen.deck.transcript))
        assert "<|" not in shown_rows(screen.deck.transcript)


async def test_leaving_while_it_answers_keeps_the_text(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        generation = await ask(pilot, engine, "long")
        generation.feed("the beginning")
        await pilot.press("ctrl+q")
    app.end_services()
    assert engine.closed
    again = make_app()
    async with again.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        assert texts(screen) == ["long", "the beginning"]
        node = screen.active.conversation.last_answer()
        assert node.status is Status.STOPPED
        used, _ = context_use(screen.active) or (0, 0)
        assert node.token_ids and used == len(generation.request.prompt_ids) + len(node.token_ids)
    again.end_services()


async def test_messages_that_could_not_be_sent_come_back_in_order(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        gate = await say_to_a_slow_template(pilot)
        await say(pilot, "the next")
        engine.refuse = "no room"
        gate.set()
        await wait_until(pilot, lambda: screen.composer.text == "slow one\n\nthe next")


async def test_leaving_keeps_a_message_whose_prompt_is_still_being_encoded(make_app):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        gate = await say_to_a_slow_template(pilot)
        app.save_all()
        gate.set()
        assert screen.active.conversation.draft == "slow one"


async def test_a_prompt_that_context_memory_cannot_hold_says_so(make_app, engine):
    engine.kv_tokens = 16
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        await say(pilot, "word " * 20)
        await wait_until(pilot, lambda: app._notifications)
        [notice] = [notification.message for notification in app._notifications]
        assert "the context memory holds at most 16 of Pocket 46M" in notice and "kv_budget" in notice
