"""A chat that outgrows its context: what is left out, what is summarised, and that nothing is lost."""

import pytest

from app.chat.context.limits import first_read
from app.chat.context.room import Room
from app.chat.conversation import Conversation, MessageNode, Role
from app.chat.events import ContextFilled, PathChanged, TextReturned
from app.chat.prompt import SUMMARY_HEAD, prompt_messages
from tests.app.chat.test_session_faults import Fakes, Tab, ask, until

WORDS = "word " * 115


def path_of(*roles: str) -> list[MessageNode]:
    return [MessageNode(str(number), None, Role(role)) for number, role in enumerate(roles)]


@pytest.mark.parametrize(
    ("room", "keeps_last", "first"),
    [(100, True, 0), (40, True, 2), (20, False, 4), (5, False, 6), (5, True, 4)],
)
def test_what_is_read_begins_with_a_message_of_the_reader(room, keeps_last, first):
    path = path_of(*["user", "assistant"] * 3)
    assert first_read(path, [10] * 6, room, keeps_last=keeps_last) == first


async def long_chat(turns: int = 4, context: int = 1000) -> tuple[Fakes, Tab]:
    """A tab whose next message is too long for what is left."""
    fakes = Fakes()
    tab = fakes.tabs[0]
    model = tab.session.model.local
    model.max_tokens = model.context_length = context
    for number in range(turns):
        await ask(fakes, tab, f"question {number} " + WORDS)
        fakes.engine.generations[-1].feed(f"answer {number} " + WORDS)
        fakes.engine.generations[-1].finish()
        await until(lambda: not tab.session.busy)
    return fakes, tab


async def blocked(fakes: Fakes, tab: Tab) -> None:
    tab.session.send("and now")
    await until(lambda: tab.session.blocked is not None)


def read_by_model(tab: Tab) -> list[tuple[str, str]]:
    return tab.session.model.local.template.calls[-1][0]


async def test_a_message_that_does_not_fit_waits_and_comes_back_when_nothing_is_chosen():
    fakes, tab = await long_chat()
    await blocked(fakes, tab)
    session = tab.session
    assert ContextFilled() in tab.events and not session.busy and len(fakes.engine.generations) == 4
    assert "tokens long" in session.blocked_why and session.conversation.draft == "and now"
    session.send("another")
    assert session.queued == ["another"]
    assert session.stop() and session.blocked is None
    texts = [event.text for event in tab.events if isinstance(event, TextReturned)]
    assert texts == ["and now\n\nanother"]


async def test_the_oldest_turns_are_left_out_and_stay_in_the_chat():
    fakes, tab = await long_chat()
    await blocked(fakes, tab)
    before = [node.text for node in tab.session.conversation.path()]
    tab.session.make_room(Room.TRIM)
    await until(lambda: len(fakes.engine.generations) == 5 and tab.session.sequence_id == 5)
    path = tab.session.conversation.path()
    assert [node.text for node in path][: len(before)] == before
    marked = [number for number, node in enumerate(path) if node.above is not None]
    assert len(marked) == 1 and path[marked[0]].above == "" and path[marked[0]].role is Role.USER
    assert [text for _, text in read_by_model(tab)] == [node.text for node in path[marked[0] : -1]]
    assert len(fakes.engine.generations[4].request.prompt_ids) < 510


async def test_a_summary_is_written_by_the_model_and_read_in_the_place_of_what_it_sums_up():
    fakes, tab = await long_chat()
    tab.session.conversation.system_prompt = "Be kind."
    await blocked(fakes, tab)
    tab.session.make_room(Room.SUMMARISE)
    await until(lambda: len(fakes.engine.generations) == 5)
    asked = read_by_model(tab)
    assert asked[-1][1].startswith("Summarise our conversation") and asked[1][1].startswith("question 0")
    assert tab.session.busy and tab.session.sequence_id is None
    summary = fakes.engine.generations[4]
    assert summary.request.max_tokens == 125 and summary.request.label.startswith("summary of ")
    summary.feed("<think>hm</think>They spoke of words.")
    summary.finish()
    await until(lambda: tab.session.sequence_id == 6)
    [mark] = [node for node in tab.session.conversation.path() if node.above is not None]
    assert mark.above == "They spoke of words."
    read = read_by_model(tab)
    assert read[0] == ("system", f"Be kind.\n\n{SUMMARY_HEAD}\nThey spoke of words.")
    assert read[-1] == ("user", "and now") and not any("question 0" in text for _, text in read)
    assert PathChanged() in tab.events


@pytest.mark.parametrize("how", ["stop", "empty", "refused"])
async def test_a_summary_that_does_not_come_gives_the_message_back(how):
    fakes, tab = await long_chat()
    await blocked(fakes, tab)
    if how == "refused":
        fakes.engine.refuse = "no room"
    tab.session.make_room(Room.SUMMARISE)
    if how != "refused":
        await until(lambda: len(fakes.engine.generations) == 5)
        fakes.engine.generations[4].finish() if how == "empty" else tab.session.stop()
    await until(lambda: not tab.session.busy)
    assert [event.text for event in tab.events if isinstance(event, TextReturned)] == ["and now"]
    assert all(node.above is None for node in tab.session.conversation.nodes.values())
    if how == "stop":
        await until(lambda: fakes.engine.generations[4].finished)
    else:
        assert {"empty": "wrote no summary", "refused": "no room"}[how] in tab.said


async def test_a_message_that_leaves_no_room_for_older_ones_is_read_alone():
    _, tab = await long_chat()
    tab.session.send("long " * 800)
    await until(lambda: tab.session.blocked is not None)
    tab.session.make_room(Room.TRIM)
    await until(lambda: tab.session.sequence_id == 5)
    asked = tab.session.conversation.path()[-2]
    assert asked.above == "" and [text for _, text in read_by_model(tab)] == [asked.text]


async def test_a_message_that_is_too_long_by_itself_comes_back():
    _, tab = await long_chat()
    tab.session.send("long " * 2000)
    await until(lambda: tab.session.blocked is not None)
    tab.session.make_room(Room.TRIM)
    await until(lambda: tab.session.blocked is not None and not tab.session.busy)
    assert tab.session.stop()
    assert [event.text for event in tab.events if isinstance(event, TextReturned)] == ["long " * 2000]


async def test_room_is_made_by_hand_before_the_context_is_full():
    fakes, tab = await long_chat()
    tab.session.make_room(Room.TRIM)
    await until(lambda: not tab.session.busy)
    assert [node.above for node in tab.session.conversation.path()].count("") == 1
    assert tab.session.freed_tokens > 200 and len(fakes.engine.generations) == 4


def test_a_later_mark_takes_the_place_of_an_earlier_one():
    chat = Conversation(system_prompt="")
    for text, above in (("one", None), ("two", "S1"), ("three", None), ("four", "S2"), ("five", None)):
        chat.add_user(text).above = above
    messages, _ = prompt_messages("", chat.path(), "six", "m")
    assert [message.content for message in messages] == [f"{SUMMARY_HEAD}\nS2", "four", "five", "six"]
    fork = chat.fork()
    assert [node.above for node in fork.path()] == [None, "S1", None, "S2", None]
