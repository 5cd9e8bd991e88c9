"""Plain mode: lines in, text out, over the same chats as the screens."""

import asyncio
import io
import queue
import time

import pytest

from app.chat.conversation import Status
from app.history.store import HistoryStore
from app.plain.commands import SHORT
from app.plain.program import Plain
from app.screens.wiring import Asked
from app.settings.actions import ACTIONS
from app.settings.file import Settings, load_settings
from app.settings.paths import locations
from tests.app.tools.scripted import HERMES, ScriptedServers, call_text


class Keyboard:
    """Lines as somebody types them."""

    def __init__(self):
        self._lines = queue.Queue()

    def isatty(self):
        return True

    def type(self, line):
        self._lines.put(line + "\n")

    def leave(self):
        self._lines.put(None)

    def __iter__(self):
        return iter(self._lines.get, None)


class Person:
    """Someone who types and reads."""

    def __init__(self, engine, lines=None):
        self.keyboard = lines or Keyboard()
        self.out = io.StringIO()
        self.engine = engine
        self.plain = Plain(Settings(), locations(), lambda: engine, Asked(), self.keyboard, self.out)

    @property
    def read(self):
        return self.out.getvalue()

    async def until(self, condition):
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline, self.read
            await asyncio.sleep(0.002)

    async def asks(self, text, answer):
        count = len(self.engine.generations)
        self.keyboard.type(text)
        await self.until(lambda: len(self.engine.generations) == count + 1)
        self.engine.generations[-1].feed(answer)
        self.engine.generations[-1].finish()
        await self.until(lambda: not self.plain.talk.busy)

    async def does(self, line, says):
        before = len(self.read)
        self.keyboard.type(line)
        await self.until(lambda: says in self.read[before:])


@pytest.fixture
async def person(home, engine, nothing_to_fetch):
    someone = Person(engine)
    someone.running = asyncio.create_task(someone.plain.run())
    await someone.until(lambda: "answers here" in someone.read)
    yield someone
    someone.keyboard.leave()
    assert await someone.running == 0


async def test_an_answer_follows_its_question_and_is_kept(person):
    await person.asks("What is a tern?", "A **bird**.\x1b[2J")
    assert person.read.endswith("\nYou: ") and "Answer: A **bird**.\x1b[2J\n" in person.read
    person.keyboard.leave()
    await person.running
    store = HistoryStore(locations().history_file, on_warning=lambda _: None, visiting=True)
    assert [chat.title for chat in store.recent()] == ["What is a tern?"]
    store.close()


async def test_nothing_that_is_written_moves_the_cursor_of_a_terminal(person):
    person.out.isatty = lambda: True
    await person.asks("hello", "a\x1b[2Jb\tc")
    assert "\x1b" not in person.read and "\r" not in person.read and "\b" not in person.read


async def test_chats_are_opened_gone_to_and_listed(person):
    await person.asks("first question", "first answer")
    await person.does("/new", "Chat 2 of 2: New chat.")
    await person.asks("second question", "second answer")
    await person.does("/tabs", "2. second question (one asked, idle) (here)")
    await person.does("/go 1", "Answer: first answer")
    await person.does("/go 7", "1 to 2")
    await person.does("/close", "Chat 1 of 1: second question.")
    await person.does("/chats first", "1. first question")
    await person.does("/open 1", "Chat 2 of 2: first question.")
    await person.does("/fork 1", "Chat 3 of 3")
    await person.does("/rename Terns", "This chat is Terns.")


async def test_a_chat_in_the_back_says_when_it_has_answered(person):
    person.keyboard.type("slow one")
    await person.until(lambda: len(person.engine.generations) == 1)
    await person.does("/new", "Chat 2 of 2")
    person.engine.generations[0].feed("done")
    person.engine.generations[0].finish()
    await person.until(lambda: "(chat 1, slow one: has answered)" in person.read)
    assert "Answer: done" not in person.read
    await person.does("/go 1", "Answer: done\n")
    await person.until(lambda: person.read.endswith("\nYou: "))


async def test_an_answer_is_stopped_asked_again_and_edited(person):
    person.keyboard.type("one")
    await person.until(lambda: len(person.engine.generations) == 1)
    person.engine.generations[0].feed("begun")
    await person.until(lambda: "Answer: begun" in person.read)
    await person.does("/stop", "(stopped)")
    await person.asks("/again", "better")
    await person.does("/previous_answer", "Answer: begun")
    await person.asks("/edit_last other words", "to that")
    await person.does("/show", "You: other words")


async def test_lines_that_end_with_a_backslash_go_on_and_two_slashes_are_one(person):
    person.keyboard.type("one \\")
    await person.asks("two", "yes")
    assert person.plain.talk.active.conversation.last_user().text == "one \ntwo"
    await person.asks("//help", "yes")
    assert person.plain.talk.active.conversation.last_user().text == "/help"


async def test_settings_and_models_are_changed_by_line(person):
    await person.does("/settings panel off", "panel is off, at once.")
    await person.until(lambda: locations().settings_file.exists())
    await person.until(lambda: load_settings(locations().settings_file)[0].general.panel == "off")
    await person.does("/settings panel maybe", "must be one of auto, on, off")
    await person.does("/tab_settings temperature 0.25", "temperature 0.25")
    await person.does("/tab_settings temperature -1", "temperature:")
    await person.does("/tab_settings max_tokens 300", "max_tokens 300")
    await person.does("/tab_settings max_tokens -1", "0 for no limit")
    await person.does("/tab_settings max_tokens 0", "max_tokens 0")
    await person.does("/model no-such-model", "no-such-model")
    await person.does("/xyzzy", "no command /xyzzy")


async def test_every_action_is_a_command(person):
    person.plain._commands._leave = lambda: None
    for action in ACTIONS:
        before = len(person.read)
        person.keyboard.type(f"/{action.id}")
        if action.id not in ("edit", "quit_app", "regenerate", "previous_answer", "next_answer"):
            await person.until(lambda before=before: len(person.read) > before)
    await person.does("/tabs", "(here)")
    assert "There is no command" not in person.read
    assert set(SHORT.values()) <= {action.id for action in ACTIONS}


async def test_a_deleted_chat_comes_back(person):
    await person.asks("to go", "yes")
    await person.does("/new", "Chat 2 of 2")
    await person.does("/chats", "1. to go")
    await person.does("/delete 1", "to go is deleted")
    await person.does("/undo", "to go is back.")


async def test_a_pipe_is_read_to_its_end_and_answered(home, engine, nothing_to_fetch):
    person = Person(engine, io.StringIO("What is a tern?\n/new\nAnd a gull?\n"))
    running = asyncio.create_task(person.plain.run())
    for number in (1, 2):
        await person.until(lambda n=number: len(engine.generations) == n)
        engine.generations[-1].feed(f"answer {number}")
        engine.generations[-1].finish()
    assert await running == 0
    order = [
        "You: What is a tern?\n",
        "Answer: answer 1",
        "Chat 2 of 2",
        "You: And a gull?\n",
        "Answer: answer 2",
    ]
    places = [person.read.index(part) for part in order]
    assert places == sorted(places)


def with_tools(person, **settings):
    servers = ScriptedServers(**settings)
    context = person.plain.talk.context
    object.__setattr__(context.services, "tools", servers)
    session = person.plain.talk.active
    session.tools._servers = servers
    session.model.local.template.tool_format = HERMES
    return servers


async def calls(person, text=None):
    count = len(person.engine.generations)
    person.keyboard.type("what is in a.txt")
    await person.until(lambda: len(person.engine.generations) == count + 1)
    person.engine.generations[-1].feed(text or call_text())
    person.engine.generations[-1].finish()
    await person.until(lambda: person.plain.talk.active.tools.asking is not None)


async def test_a_call_of_a_tool_is_asked_about_by_a_line(person):
    servers = with_tools(person)
    await person.does("/tools", "files is off (ready, 2 tools): read, list")
    await person.does("/tools files", "files is on")
    await calls(person)
    assert (
        'The model asks for read of files with { "path": "a.txt" }. /yes lets it run, /always in this chat, '
        "/no refuses.\n"
    ) in person.read
    await person.does("/yes", "(read: 5 characters)")
    assert servers.calls == [("read", {"path": "a.txt"})]
    await person.until(lambda: len(person.engine.generations) == 2)
    person.engine.generations[-1].feed(call_text(path='"b.txt"'))
    person.engine.generations[-1].finish()
    await person.until(lambda: person.plain.talk.active.tools.asking is not None)
    await person.does("/no", "(read: refused)")
    await person.until(lambda: len(person.engine.generations) == 3)
    person.engine.generations[-1].feed("I cannot.")
    person.engine.generations[-1].finish()
    await person.until(lambda: "I cannot." in person.read and not person.plain.talk.busy)
    await person.does("/no", "No tool was asked for.")


async def test_lines_that_end_while_a_tool_is_asked_for_leave_and_keep_it_as_stopped(person):
    with_tools(person)
    person.plain.talk.active.tools.switch("files", on=True)
    await calls(person)
    node = person.plain.talk.active.conversation.path()[-1]
    person.plain._by_hand = False
    person.keyboard.leave()
    assert await person.running == 0
    assert (node.status, node.error) == (Status.STOPPED, "stopped")
