"""Several answers at once: one reads the prompt, the others find it, and nothing is lost."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from app.chat.conversation import Conversation, Status
from app.chat.events import Notice, TextReturned
from app.chat.pump import Pump
from app.chat.session import ChatSession
from app.chat.shared import Services
from app.models.backends.local import LocalModel
from app.writing.fan import read_wish
from engine import Engine, SamplingParams
from tests.app.chat.test_session_faults import Fakes, Saved, ask, until
from tests.support.fakes import FakeModel

QUESTION = "Tell me at length and in detail what a tern is, where it lives and what it eats. " * 4


async def test_four_answers_read_the_prompt_once(small_model):
    with Engine("cpu", weight_dtype="float32", kv_budget_bytes=64 << 20, debug=True) as engine:
        there = SimpleNamespace(
            is_paused=lambda model: False, can_move=lambda model: False, release=lambda model: None
        )
        services = Services(there, Pump(asyncio.get_running_loop(), lambda: None), Saved())  # type: ignore[arg-type]
        conversation = Conversation(sampling=SamplingParams(temperature=1.0), max_tokens=8)
        session = ChatSession(conversation, services, lambda *_: None)
        session.models.current = LocalModel(engine.load(small_model))
        assert session.fan_out(QUESTION, read_wish("seeds 1 2 3 4").variants)
        await until(lambda: not session.busy)
        size = engine.stats().block_size
        first, *others = (conversation.nodes[column.node_id].stats for column in session.fan.columns)
        assert first.cached_tokens == 0
        assert [one.cached_tokens for one in others] == [(first.prompt_tokens - 1) // size * size] * 3
        assert others[0].cached_tokens >= 2 * size
        answers = conversation.siblings(conversation.leaf)
        assert len({tuple(node.token_ids) for node in answers}) == 4, "each has a seed of its own"


class Library:
    """An engine service that opens models by hand."""

    def __init__(self, fakes: Fakes) -> None:
        self.fakes = fakes
        self.given_back: list[str] = []
        self.refuses: str | None = None

    def load(self, path: Path, loaded: Callable, failed: Callable, progress: Callable, plan: Callable):
        if self.refuses is not None:
            failed(self.refuses)
        else:
            loaded(LocalModel(FakeModel(self.fakes.engine, path, 1000)))

    def release(self, model: LocalModel) -> None:
        self.given_back.append(model.path.name)


def fanned(fakes: Fakes, wish: str, text: str | None = "question") -> ChatSession:
    session = fakes.tabs[0].session
    assert session.fan_out(text, read_wish(wish).variants)
    return session


async def test_different_prompts_are_read_at_once():
    fakes = Fakes()
    session = fanned(fakes, 'system "Be brief." "Rhyme."')
    await until(lambda: len(session.running) == 2)
    assert [call[0][0] for call in session.model.local.template.calls] == [
        ("system", "Be brief."),
        ("system", "Rhyme."),
    ]
    assert session.conversation.system_prompt == ""


async def test_models_are_opened_for_it_and_given_back():
    fakes = Fakes()
    library = Library(fakes)
    for tab in fakes.tabs:
        object.__setattr__(tab.session._services, "engine", library)
    session = fanned(fakes, "models m.gguf a.gguf b.gguf")
    await until(lambda: len(session.running) == 3)
    assert sorted(Path(a.node.model).name for a in session.running) == ["a.gguf", "b.gguf", "m.gguf"]
    for generation in fakes.engine.generations:
        assert not library.given_back
        generation.feed("fine")
        generation.finish()
    await until(lambda: not session.busy)
    assert sorted(library.given_back) == ["a.gguf", "b.gguf"]
    assert len(session.conversation.siblings(session.conversation.leaf)) == 3


async def test_a_model_that_cannot_be_opened_says_so_beside_the_others():
    fakes = Fakes()
    library = Library(fakes)
    library.refuses = "a.gguf is damaged"
    object.__setattr__(fakes.tabs[0].session._services, "engine", library)
    session = fanned(fakes, "models m.gguf a.gguf")
    await until(lambda: len(session.running) == 1 and session._task is None)
    assert session.fan.columns[1].error == "a.gguf is damaged"
    assert Notice("a.gguf is damaged", "error") in fakes.tabs[0].events


async def test_stopping_before_the_prompt_is_read_keeps_what_there_is():
    fakes = Fakes()
    session = fanned(fakes, "seeds 1 2 3")
    await until(lambda: len(session.running) == 1)
    session.stop()
    await until(lambda: not session.busy)
    assert len(fakes.engine.generations) == 1
    path = session.conversation.path()
    assert [node.text for node in path] == ["question", ""] and path[1].status is Status.STOPPED


async def test_a_message_that_nobody_could_be_asked_with_comes_back():
    fakes = Fakes()
    fakes.engine.refuse = "too long"
    session = fanned(fakes, "seeds 1 2 3")
    await until(lambda: not session.busy)
    assert TextReturned("question") in fakes.tabs[0].events
    assert not session.conversation.nodes and "too long" in fakes.tabs[0].said


async def test_the_last_message_gets_more_alternatives_and_the_old_answer_stays():
    fakes = Fakes()
    tab = fakes.tabs[0]
    await ask(fakes, tab, "question")
    fakes.engine.generations[-1].feed("old")
    fakes.engine.generations[-1].finish()
    await until(lambda: not tab.session.busy)
    session = fanned(fakes, "seeds 1 2", None)
    await until(lambda: len(session.running) == 1)
    fakes.engine.generations[1].feed("new")
    await until(lambda: len(session.running) == 2)
    shown = session.conversation.leaf
    session.promote(session.running[1].node_id)
    fakes.engine.generations[2].feed("newer")
    fakes.engine.generations[2].finish()
    await until(lambda: not session.busy)
    answers = session.conversation.siblings(shown)
    assert [(node.text, node.status) for node in answers] == [
        ("old", Status.COMPLETE),
        ("new", Status.STOPPED),
        ("newer", Status.COMPLETE),
    ]
    assert session.conversation.leaf == answers[2].id


async def test_at_temperature_0_seeds_are_refused():
    fakes = Fakes()
    fakes.tabs[0].session.conversation.sampling = SamplingParams(temperature=0.0)
    session = fanned(fakes, "3")
    await until(lambda: not session.busy)
    assert "/fan temperature 0.5 1" in fakes.tabs[0].said
    assert TextReturned("question") in fakes.tabs[0].events


async def test_leaving_keeps_every_answer_as_it_stands():
    fakes = Fakes()
    session = fanned(fakes, "seeds 1 2")
    await until(lambda: len(session.running) == 1)
    fakes.engine.generations[0].feed("one")
    await until(lambda: len(session.running) == 2)
    fakes.engine.generations[1].feed("two")
    await until(lambda: all(answer.node.text for answer in session.running))
    session.shut_down()
    answers = session.conversation.siblings(session.conversation.leaf)
    assert [node.text for node in answers] == ["one", "two"]
    assert {node.status for node in answers} == {Status.STOPPED}


async def test_what_waits_its_turn_is_sent_once_all_have_ended():
    fakes = Fakes()
    session = fanned(fakes, "seeds 1 2")
    session.send("next")
    await until(lambda: len(session.running) == 1)
    fakes.engine.generations[0].feed("one")
    fakes.engine.generations[0].finish()
    await until(lambda: len(fakes.engine.generations) == 2)
    assert session.queued == ["next"]
    fakes.engine.generations[1].finish()
    await until(lambda: len(fakes.engine.generations) == 3)
    assert session.queued == []
