"""The server inside the app: tabs' models answer other programs."""

import asyncio
import json
import urllib.error
import urllib.request

import httpx
import pytest

from app.models.outside import count_outside
from app.serve.door import Door
from app.serve.doors import noted, open_doors
from app.serve.listening import address_of, listening_socket
from app.settings.file import SamplingSettings
from tests.app.serve.scripted import ScriptedServer, Template, Tokenizer, said

CHAT = "/v1/chat/completions"


def post(address, body):
    with urllib.request.urlopen(f"{address}{CHAT}", json.dumps(body).encode(), timeout=60) as response:
        return json.load(response)


def test_whatever_is_loaded_is_served(tmp_path):
    scripted, resident = ScriptedServer(), []
    scripted.answer("Good", " day.")
    door = Door(
        listening_socket("127.0.0.1", 0),
        lambda: resident,
        scripted.engine.stats,
        lambda: SamplingSettings(temperature=0.25),
        tmp_path,
    )
    door.open()
    try:
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(door.address, said())
        assert refused.value.code == 503 and b"no model is loaded yet" in refused.value.read()
        resident.append(scripted.model)
        assert post(door.address, said())["choices"][0]["message"]["content"] == "Good day."
        assert open_doors(tmp_path) == [door.address]
        assert scripted.generations[0].request.sampling.temperature == 0.25
    finally:
        door.close(60)
    with pytest.raises(OSError):
        post(door.address, said())
    assert open_doors(tmp_path) == [] == list(tmp_path.iterdir())


def test_what_a_killed_program_left_and_what_is_damaged_is_no_door(tmp_path):
    with listening_socket("127.0.0.1", 0) as gone:
        closed = address_of(gone)
    (tmp_path / "1.json").write_text(json.dumps({"address": closed, "since": 1}))
    (tmp_path / "2.json").write_text("[")
    (tmp_path / "3.json").write_text(json.dumps({"address": "http://[", "since": 1}))
    with listening_socket("127.0.0.1", 0) as listening:
        listening.listen()
        with noted(tmp_path, address_of(listening)):
            assert open_doors(tmp_path) == [address_of(listening)]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["2.json"]


def test_a_door_may_close_while_it_opens(tmp_path):
    scripted = ScriptedServer()
    door = Door(listening_socket("127.0.0.1", 0), list, scripted.engine.stats, SamplingSettings, tmp_path)
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
