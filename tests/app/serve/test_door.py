"""The server inside the app: tabs' models answer other programs."""

import asyncio
import json
import urllib.error
import urllib.request

import httpx
import pytest

from app.models.outside import count_outside
from app.serve.door import Door
from app.serve.listening import listening_socket
from app.settings.file import SamplingSettings
from tests.app.serve.scripted import ScriptedServer, Template, Tokenizer, said

CHAT = "/v1/chat/completions"


def post(address, body):
    with urllib.request.urlopen(f"{address}{CHAT}", json.dumps(body).encode(), timeout=60) as response:
        return json.load(response)


def test_whatever_is_loaded_is_served():
    scripted, resident = ScriptedServer(), []
    scripted.answer("Good", " day.")
    door = Door(
        listening_socket("127.0.0.1", 0),
        lambda: resident,
        scripted.engine.stats,
        lambda: SamplingSettings(temperature=0.25),
    )
    door.open()
    try:
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(door.address, said())
        assert refused.value.code == 503 and b"no model is loaded yet" in refused.value.read()
        resident.append(scripted.model)
        assert post(door.address, said())["choices"][0]["message"]["content"] == "Good day."
        assert scripted.generations[0].request.sampling.temperature == 0.25
    finally:
        door.close(60)
    with pytest.raises(OSError):
        post(door.address, said())


def test_a_door_may_close_while_it_opens():
    scripted = ScriptedServer()
    door = Door(listening_socket("127.0.0.1", 0), list, scripted.engine.stats, SamplingSettings)
    door.open()
    door.close(60)
    assert not door._thread.is_alive()


async def test_the_app_counts_who_asks_from_outside(make_app, engine, monkeypatch):
    load = engine.load

    def load_scripted(*arguments, **options):
        model = load(*arguments, **options)
        model.template, model.tokenizer = Template(), Tokenizer()
        return model

    monkeypatch.setattr(engine, "load", load_scripted)
    app = make_app(listening=listening_socket("127.0.0.1", 0))
    async with app.run_test() as pilot:
        while app.context is None or not app.context.engine.resident():
            await pilot.pause()
        async with httpx.AsyncClient(base_url=app._door.address, timeout=60) as client:
            (model,) = (await client.get("/v1/models")).json()["data"]
            assert model["id"] == "builtin"
            asked = asyncio.create_task(client.post(CHAT, json=said() | {"model": "builtin"}))
            while not engine.generations:
                await pilot.pause()
            assert count_outside(engine.stats()) == 1
            engine.generations[0].feed("Hello")
            engine.generations[0].finish()
            assert (await asked).json()["choices"][0]["message"]["content"] == "Hello"
            assert count_outside(engine.stats()) == 0
        app._door.close(60)
