"""Models that are loaded when a request names them."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.serve.requests.naming import names_of
from app.serve.requests.on_demand import ModelShelf, OnDemand
from app.serve.requests.served import Served, ServedModels
from engine import EngineError
from tests.app.serve.scripted import USUAL, ScriptedServer, said

CHAT = "/v1/chat/completions"


def found(name, problem=None):
    summary = SimpleNamespace(name=f"The {name}", problem=problem)
    return SimpleNamespace(title=name, path=Path(f"/models/{name}.gguf"), summary=summary, names=(name,))


class Shelf:
    """Three models on disk, one of them broken; a test may have a load wait or fail."""

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server
        self.loads: list[str] = []
        self.unloaded: list[str] = []
        self.busy: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.failure: str | None = None

    def load(self, model) -> Served:
        self.loads.append(model.title)
        self.gate.wait(60)
        if self.failure is not None:
            raise EngineError(f"{model.path}: {self.failure}")
        return Served(self.server.model, model.title, names_of(model.path, model), USUAL)

    def made(self, most: int) -> OnDemand:
        listed = [found("one"), found("two"), found("broken", "cut off")]
        shelf = ModelShelf(
            lambda: listed,
            self.load,
            lambda served: self.unloaded.append(served.id),
            lambda served: served.id in self.busy,
        )
        return OnDemand(shelf, most)


@pytest.fixture
def shelf(server):
    return Shelf(server)


@pytest.fixture
def on_demand(server, shelf):
    (named,) = server.desk.models.models
    server.desk.models = ServedModels(lambda: [named], shelf.made(1))
    return server


async def test_a_model_that_is_listed_is_loaded_once(on_demand, shelf):
    for name in ("one", "ONE.gguf", "The one"):
        assert (await on_demand.post(CHAT, said() | {"model": name})).status_code == 200
    assert shelf.loads == ["one"]
    data = (await on_demand.get("/v1/models")).json()["data"]
    assert [model["id"] for model in data] == ["scripted", "one", "two"]


async def test_what_is_not_there_is_refused_with_what_is(on_demand, shelf):
    for name in ("nothing", "broken"):
        response = await on_demand.post(CHAT, said() | {"model": name})
        assert response.status_code == 404
        assert response.json()["error"]["message"].endswith("there is scripted, one, two")
    assert not shelf.loads


async def test_others_come_again_while_it_loads(on_demand, shelf):
    shelf.gate.clear()
    first = asyncio.create_task(on_demand.post(CHAT, said() | {"model": "one"}))
    while not shelf.loads:
        await asyncio.sleep(0)
    for name in ("one", "two"):
        response = await on_demand.post(CHAT, said() | {"model": name})
        assert response.status_code == 503 and response.headers["retry-after"]
    assert (await on_demand.post(CHAT, said())).status_code == 200
    shelf.gate.set()
    assert (await first).status_code == 200


async def test_the_one_that_was_not_asked_for_longest_makes_room(on_demand, shelf):
    assert (await on_demand.post(CHAT, said() | {"model": "one"})).status_code == 200
    shelf.busy = {"one"}
    response = await on_demand.post(CHAT, said() | {"model": "two"})
    assert response.status_code == 503 and response.headers["retry-after"]
    shelf.busy = set()
    assert (await on_demand.post(CHAT, said() | {"model": "two"})).status_code == 200
    assert shelf.unloaded == ["one"]


async def test_a_load_that_fails_says_why_without_a_path(on_demand, shelf):
    shelf.failure = "does not fit"
    response = await on_demand.post(CHAT, said() | {"model": "one"})
    assert response.status_code == 503
    message = response.json()["error"]["message"]
    assert "one: does not fit" in message and "/models" not in message
    shelf.failure = None
    assert (await on_demand.post(CHAT, said() | {"model": "one"})).status_code == 200


async def test_without_it_nothing_is_loaded(server):
    response = await server.post(CHAT, said() | {"model": "one"})
    assert response.status_code == 404 and "there is scripted" in response.text
