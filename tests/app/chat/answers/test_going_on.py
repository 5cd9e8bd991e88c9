"""Going on with an answer: from its ids, nothing of it lost at any moment."""

from pathlib import Path

import pytest

from app.chat.conversation import AnswerStats, Conversation, Status
from app.chat.events import Notice, TextReturned
from app.chat.reasoning import splitter_for
from app.models.backends.local import LocalModel
from engine import FinishReason
from tests.app.chat.test_session_faults import Fakes, ask, until
from tests.support.fakes import FakeModel


async def stopped(fakes: Fakes, text: str = "one two"):
    tab = fakes.tabs[0]
    await ask(fakes, tab, "count")
    fakes.engine.generations[-1].feed(text)
    await until(lambda: tab.session.conversation.last_answer().token_ids)
    tab.session.stop()
    await until(lambda: not tab.session.busy)
    return tab.session, tab.session.conversation.last_answer()


def test_until_its_beginning_has_come_again_an_answer_stays_as_it_is():
    conversation = Conversation()
    conversation.add_user("q")
    node = conversation.begin_answer("m")
    for number, text in enumerate(("<think>", "hm", "</think>", "One", " tw")):
        conversation.append(node.id, text, [number])
    conversation.finish(node.id, Status.STOPPED, stats=AnswerStats(5, 30.0))
    conversation.begin_again(node.id, splitter_for(), 5)
    for number, text in enumerate(("<think>", "hm", "</think>", "One")):
        assert conversation.append(node.id, text, [number]) == []
        assert (node.text, node.reasoning, len(node.token_ids)) == ("One tw", "hm", 5)
    assert conversation.comes_again(node.id)
    conversation.append(node.id, " tw", [4])
    assert not conversation.comes_again(node.id)
    conversation.append(node.id, "o", [5])
    conversation.finish(node.id)
    assert (node.text, node.reasoning, node.token_ids) == ("One two", "hm", [0, 1, 2, 3, 4, 5])
    assert node.reasoning_tokens == 3


def test_what_was_held_back_at_the_stop_is_not_there_twice():
    conversation = Conversation()
    conversation.add_user("q")
    node = conversation.begin_answer("m")
    conversation.append(node.id, "<thin", [0])
    conversation.finish(node.id, Status.STOPPED)
    assert node.text == "<thin"
    conversation.begin_again(node.id, splitter_for(), 1)
    conversation.append(node.id, "<thin", [0])
    conversation.append(node.id, "g>", [1])
    conversation.finish(node.id)
    assert node.text == "<thing>"


async def test_the_prompt_ends_with_the_ids_of_the_answer():
    fakes = Fakes()
    session, node = await stopped(fakes)
    first = fakes.engine.generations[-1].request
    session.resume()
    await until(lambda: session.running)
    going_on = fakes.engine.generations[-1]
    assert going_on.request.prompt_ids == (*first.prompt_ids, 0, 1)
    assert going_on.request.answered == 2
    assert (node.text, node.status) == ("one two", Status.STREAMING)
    going_on.feed("one two")
    going_on.feed(" three")
    going_on.finish()
    await until(lambda: not session.busy)
    assert (node.text, node.status) == ("one two three", Status.COMPLETE)
    assert session.conversation.siblings(node.id) == [node]
    assert node.stats.prompt_tokens == len(first.prompt_ids)


async def test_one_that_is_stopped_before_its_beginning_came_again_is_as_before():
    fakes = Fakes()
    session, node = await stopped(fakes)
    session.resume()
    await until(lambda: session.running)
    session.stop()
    await until(lambda: not session.busy)
    assert (node.text, node.status, node.token_ids) == ("one two", Status.STOPPED, [0, 1])


async def test_an_answer_that_is_whole_or_another_models_is_not_gone_on_with():
    fakes = Fakes()
    session, node = await stopped(fakes)
    session.models.current = LocalModel(FakeModel(fakes.engine, Path("other.gguf"), 1000))
    session.resume()
    node.status = Status.COMPLETE
    session.resume()
    assert len(fakes.engine.generations) == 1
    said = [event.text for event in fakes.tabs[0].events if isinstance(event, Notice)]
    assert "wrote this answer: open it with" in said[0] and "stopped or cut off" in said[1]


async def test_an_answer_goes_on_from_other_words_as_an_alternative():
    fakes = Fakes()
    session, node = await stopped(fakes)
    session.edit(node.id, "eins zwei drei")
    await until(lambda: session.running)
    going_on = fakes.engine.generations[-1]
    assert going_on.request.answered == 3
    assert session.model.local.tokenizer.counted == ["eins zwei drei"]
    new = session.conversation.last_answer()
    assert (new.text, new.parent) == ("eins zwei drei", node.parent)
    going_on.feed("eins zwei drei")
    going_on.feed(" vier")
    going_on.finish()
    await until(lambda: not session.busy)
    assert new.text == "eins zwei drei vier"
    assert [one.text for one in session.conversation.siblings(new.id)] == ["one two", "eins zwei drei vier"]


async def test_other_words_that_cannot_be_begun_with_come_back():
    fakes = Fakes()
    session, node = await stopped(fakes)
    session.model.local.template.opened = True
    node.reasoning_tokens = 0
    session.edit(node.id, "eins")
    await until(lambda: not session.busy)
    assert TextReturned("eins", node.id) in fakes.tabs[0].events
    assert "begins with its thoughts" in fakes.tabs[0].said


@pytest.mark.parametrize("reason", [FinishReason.CANCELLED, FinishReason.STOP])
async def test_a_message_that_is_sent_now_stops_the_answer_before_it(reason):
    fakes = Fakes()
    tab = fakes.tabs[0]
    await ask(fakes, tab, "first")
    tab.session.send("second")
    tab.session.send("third")
    fakes.engine.generations[-1].cancel_on_request = False
    tab.session.send_now("third")
    fakes.engine.generations[-1].finish(reason)
    await until(lambda: len(fakes.engine.generations) == 2)
    await until(lambda: tab.session.running)
    assert [node.text for node in tab.session.conversation.path()][2] == "third"
    assert tab.session.queued == ["second"]
    assert not tab.session.send_now("third")
