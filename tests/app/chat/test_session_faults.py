"""A fault of the app's own ends one tab's answer with a line that says so; all else goes on."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.chat.conversation import Conversation, Status
from app.chat.events import AnswerFinished, Notice, PathChanged, SessionEvent, TextReturned
from app.chat.pump import Pump
from app.chat.session import ChatSession
from app.chat.shared import Services
from app.models.backends.local import LocalModel
from tests.support.fakes import FakeEngine, FakeModel


class Boom(Exception):
    """Nothing that the engine or the app raises on purpose."""


class Saved:
    """A history that keeps nothing and may fail."""

    fails = False

    def save(self, conversation: Conversation) -> None:
        if self.fails:
            raise Boom("no disk")

    def append(self, conversation: Conversation, node_id: str) -> None:
        self.save(conversation)


class Tab:
    """A session with its model open, and what it reports."""

    def __init__(self, services: Services, engine: FakeEngine) -> None:
        self.events: list[SessionEvent] = []
        self.broken_by: type[SessionEvent] | None = None
        self.session = ChatSession(Conversation(), services, self.report)
        self.session.models.current = LocalModel(FakeModel(engine, Path("m.gguf"), 1000))

    def report(self, session: ChatSession, event: SessionEvent) -> None:
        if self.broken_by is not None and isinstance(event, self.broken_by):
            raise Boom("no widget")
        self.events.append(event)

    @property
    def said(self) -> str:
        last = self.session.conversation.last_answer()
        notices = [event.text for event in self.events if isinstance(event, Notice)]
        return " ".join([*notices, last.error or "" if last else ""])


class Fakes:
    """Two tabs over one pump."""

    def __init__(self, *, stop_repeats: bool = True) -> None:
        self.engine, self.history = FakeEngine(), Saved()
        self.pump = Pump(asyncio.get_running_loop(), lambda: None)
        there = SimpleNamespace(is_paused=lambda model: False, can_move=lambda model: False)
        services = Services(there, self.pump, self.history, stop_repeats=stop_repeats)  # type: ignore[arg-type]
        self.tabs = [Tab(services, self.engine) for _ in range(2)]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


async def ask(fakes: Fakes, tab: Tab, text: str) -> None:
    count = len(fakes.engine.generations)
    tab.session.send(text)
    await until(lambda: len(fakes.engine.generations) > count and tab.session.sequence_id is not None)


async def answers(fakes: Fakes, tab: Tab) -> None:
    """The tab asks again, and is answered."""
    await ask(fakes, tab, "again")
    fakes.engine.generations[-1].feed("fine")
    fakes.engine.generations[-1].finish()
    await until(lambda: not tab.session.busy)
    last = tab.session.conversation.last_answer()
    assert last is not None and (last.text, last.status) == ("fine", Status.COMPLETE)


@pytest.mark.parametrize("where", ["prompt_messages", "prompt", "submit"])
async def test_a_turn_that_fails_before_its_answer_gives_the_text_back(where, monkeypatch):
    fakes = Fakes()
    tab = fakes.tabs[0]
    model = tab.session.model.local

    def fail(*_args, **_more):
        raise Boom("wet")

    with monkeypatch.context() as patch:
        owner = {"prompt_messages": None, "submit": model}.get(where, model.template)
        if owner is None:
            patch.setattr("app.chat.answers.answering.prompt_messages", fail)
        else:
            patch.setattr(owner, where, fail)
        tab.session.send("question")
        await until(lambda: not tab.session.busy)
    assert [event.text for event in tab.events if isinstance(event, TextReturned)] == ["question"]
    assert "The app failed here (Boom: wet)" in tab.said
    assert all(generation.finished for generation in fakes.engine.generations)
    await answers(fakes, tab)


async def test_an_answer_that_cannot_be_shown_ends_with_its_text_and_the_other_tab_goes_on(caplog):
    fakes = Fakes()
    bad, good = fakes.tabs
    await ask(fakes, bad, "one")
    await ask(fakes, good, "two")
    fakes.history.fails = True
    fakes.engine.generations[0].feed("kept")
    await until(lambda: fakes.engine.generations[0].finished)
    fakes.history.fails = False
    for word in ("a ", "b ", "c"):
        fakes.engine.generations[1].feed(word)
    fakes.engine.generations[1].finish()
    await until(lambda: not good.session.busy)
    assert good.session.conversation.last_answer().text == "a b c"
    last = bad.session.conversation.last_answer()
    assert (last.text, last.status, bad.session.busy) == ("kept", Status.ERROR, False)
    assert "The app failed here (Boom: no disk)" in bad.said and "Boom: no disk" in caplog.text
    await answers(fakes, bad)


@pytest.mark.parametrize("broken_by", [PathChanged, AnswerFinished])
async def test_a_tab_that_cannot_be_told_is_not_busy_for_ever(broken_by):
    fakes = Fakes()
    tab = fakes.tabs[0]
    tab.broken_by = broken_by
    tab.session.send("question")
    await until(lambda: fakes.engine.generations)
    generation = fakes.engine.generations[0]
    if broken_by is AnswerFinished:
        generation.feed("text")
        generation.finish()
    await until(lambda: not tab.session.busy and generation.finished)
    tab.broken_by = None
    await answers(fakes, tab)
    await until(lambda: not fakes.pump._streams)


async def test_what_comes_late_of_an_answer_that_broke_off_is_not_the_next_ones():
    fakes = Fakes()
    tab = fakes.tabs[0]
    tab.broken_by = PathChanged
    tab.session.send("question")
    await until(lambda: fakes.engine.generations)
    await until(lambda: not tab.session.busy)
    old = fakes.engine.generations[0]
    old.finished = None
    tab.broken_by = None
    await ask(fakes, tab, "again")
    old.feed("of another time")
    old.finish()
    await until(lambda: old not in fakes.pump._streams)
    assert tab.session.busy
    fakes.engine.generations[1].feed("mine")
    fakes.engine.generations[1].finish()
    await until(lambda: not tab.session.busy)
    assert tab.session.conversation.last_answer().text == "mine"
