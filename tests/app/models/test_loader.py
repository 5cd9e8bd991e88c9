"""The loader's thread outlives whatever a load or an unload raises."""

import queue
import threading
from pathlib import Path

import pytest

from app.models import loader
from app.models.backends.local import LocalModel
from app.models.loader import EngineService
from engine import LoadPlan
from tests.app.models.stores import Stores
from tests.support.fakes import FakeEngine

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


def load(service: EngineService, name: str) -> LocalModel | str:
    """The model, or why there is none."""
    answers: queue.Queue[LocalModel | str] = queue.Queue()
    service.load(Path(name), answers.put, answers.put, lambda _part, _what: None, answers.put)
    return answers.get(timeout=WAIT)


@pytest.mark.parametrize("error", [Boom("wet"), KeyError("tensors"), AssertionError(), MemoryError()])
def test_any_error_of_a_load_is_said_and_the_next_load_works(service, engine, monkeypatch, error):
    def fail(path, **_more):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(engine, "load", fail)
        said = load(service, "one.gguf")
    assert said == f"one.gguf could not be loaded: {str(error) or type(error).__name__}"
    assert isinstance(load(service, "one.gguf"), LocalModel)


def test_an_unload_and_a_callback_that_raise_leave_the_thread_alive(service, engine, monkeypatch):
    def fail(*_args):
        raise Boom("wet")

    model, other = load(service, "one.gguf"), load(service, "two.gguf")
    monkeypatch.setattr(model.local, "unload", fail)
    service.release(model)
    service.release(other)
    service.load(Path("three.gguf"), fail, fail, fail, fail)
    assert isinstance(load(service, "three.gguf"), LocalModel)


def ask(service: EngineService, name: str):
    """What is asked, said or given, and the job."""
    answers: queue.Queue[object] = queue.Queue()
    job = service.load(Path(name), answers.put, answers.put, lambda _part, _what: None, answers.put)
    return answers, job


def test_a_model_that_a_tab_uses_makes_room_only_when_that_is_agreed_to(service, engine):
    engine.fits = 1
    first = load(service, "one.gguf")
    answers, job = ask(service, "two.gguf")
    plan = answers.get(timeout=WAIT)
    assert isinstance(plan, LoadPlan) and plan.model_ids == (first.local.id,) and not engine.aside
    service.agree(job, plan)
    assert isinstance(answers.get(timeout=WAIT), LocalModel)
    assert engine.aside == {first.local.id: False}


def test_a_plan_that_is_given_up_changes_nothing_and_the_thread_goes_on(service, engine):
    engine.fits = 1
    load(service, "one.gguf")
    answers, job = ask(service, "two.gguf")
    plan = answers.get(timeout=WAIT)
    job.cancel()
    service.agree(job, plan)
    engine.fits = 2
    assert isinstance(load(service, "three.gguf"), LocalModel)
    assert answers.empty() and not engine.aside


def test_a_model_that_no_tab_uses_makes_room_unasked(service, engine):
    engine.fits = 1
    first = load(service, "one.gguf")
    service.release(first)
    assert isinstance(load(service, "two.gguf"), LocalModel)
    assert engine.aside == {first.local.id: False}


def test_a_plan_that_has_changed_meanwhile_is_asked_again(service, engine):
    engine.fits = 2
    models = [load(service, "one.gguf"), load(service, "two.gguf")]
    answers, job = ask(service, "three.gguf")
    plan = answers.get(timeout=WAIT)
    engine.fits = 1
    service.agree(job, plan)
    again = answers.get(timeout=WAIT)
    assert plan.model_ids == (models[0].local.id,) and again.model_ids == (
        models[0].local.id,
        models[1].local.id,
    )
    service.agree(job, again)
    assert isinstance(answers.get(timeout=WAIT), LocalModel)


def test_a_model_that_is_aside_is_woken_where_another_tab_opens_it(service, engine):
    engine.fits = 1
    first, said = load(service, "one.gguf"), queue.Queue()
    service.put_aside(first, said.put, unload=False)
    assert said.get(timeout=WAIT) is None
    assert service.states() == {Path("one.gguf"): "paused"}
    assert load(service, "one.gguf") is first and not engine.aside
    engine.answering = {first.local.id}
    service.put_aside(first, said.put, unload=True)
    assert "it is answering" in said.get(timeout=WAIT)


def test_names_of_one_file_share_what_was_loaded_until_none_is_used(service, engine, tmp_path):
    stores = Stores(tmp_path)
    params = b'{"temperature": 0.5}'
    blob = stores.ollama("registry.ollama.ai/library/tern/1b", model=b"GGUF")
    stores.ollama("registry.ollama.ai/library/wren/latest", model=b"GGUF", params=params)
    wren = tmp_path / ".ollama/models/manifests/registry.ollama.ai/library/wren/latest"
    first, second = load(service, str(blob)), load(service, str(wren))
    assert (first.path, second.path) == (blob, wren) and second.local is first.local
    assert second.recommended().values == {"temperature": 0.5} and not first.recommended().values
    assert service.states() == {blob: "loaded", wren: "loaded"} and service.resident() == [first.local]
    service.release(first)
    service.release(second)
    third = load(service, "three.gguf")
    assert not first.local.unloaded
    service.release(third)
    assert load(service, "three.gguf") is third
    assert first.local.unloaded


def test_what_cannot_fit_is_refused_with_the_plans_words(service, engine):
    engine.refusals["one"] = "one: its weights need 90 GiB"
    assert load(service, "one.gguf") == "one: its weights need 90 GiB"


def test_idle_models_are_looked_for_by_the_clock(engine, monkeypatch):
    monkeypatch.setattr(loader, "_IDLE_CHECK_S", 0.001)
    asked = threading.Event()
    monkeypatch.setattr(engine, "pause_idle", lambda *what: asked.set() if what == (300.0, 42.0) else None)
    made = EngineService(lambda: engine, lambda deliver: deliver(), idle_seconds=300.0, clock=lambda: 42.0)
    made.start()
    assert asked.wait(WAIT)
    made.close()
