"""The loader's thread outlives whatever a load or an unload raises."""

import queue
from pathlib import Path

import pytest

from app.models.loader import EngineService
from tests.support.fakes import FakeEngine, FakeModel

WAIT = 30.0


class Boom(Exception):
    """Nothing that the engine raises on purpose."""


@pytest.fixture
def engine():
    return FakeEngine()


@pytest.fixture
def service(engine):
    """Runs what it delivers on its own thread."""
    made = EngineService(lambda: engine, lambda deliver: deliver())
    made.start()
    yield made
    made.close()


def load(service: EngineService, name: str) -> FakeModel | str:
    """The model, or why there is none."""
    answers: queue.Queue[FakeModel | str] = queue.Queue()
    service.load(Path(name), answers.put, answers.put, lambda _part, _what: None)
    return answers.get(timeout=WAIT)


@pytest.mark.parametrize("error", [Boom("wet"), KeyError("tensors"), AssertionError(), MemoryError()])
def test_any_error_of_a_load_is_said_and_the_next_load_works(service, engine, monkeypatch, error):
    def fail(path, **_more):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(engine, "load", fail)
        said = load(service, "one.gguf")
    assert said == f"one.gguf could not be loaded: {str(error) or type(error).__name__}"
    assert isinstance(load(service, "one.gguf"), FakeModel)


def test_an_unload_and_a_callback_that_raise_leave_the_thread_alive(service, engine, monkeypatch):
    def fail(*_args):
        raise Boom("wet")

    model, other = load(service, "one.gguf"), load(service, "two.gguf")
    monkeypatch.setattr(model, "unload", fail)
    service.release(model)
    service.release(other)
    service.load(Path("three.gguf"), fail, fail, fail)
    assert isinstance(load(service, "three.gguf"), FakeModel)
