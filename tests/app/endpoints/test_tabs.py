"""Tabs of an endpoint's model beside tabs of models of the engine."""

from pathlib import Path

import pytest

from app.chat.conversation import Status
from app.chat.events import TabState
from app.models.endpoint_keys import endpoint_key
from app.screens.dialogs.models.model_picker import ModelPicker
from app.settings.file import Settings
from app.settings.servers.endpoints import Endpoint
from app.widgets.contents import context_use, status_item
from app.writing.fan import read_wish
from tests.app.driving import ready, say, wait_until
from tests.app.endpoints.scripted import HEAD, WAIT, event

KEY = endpoint_key("cluster", "tern-7b")


@pytest.fixture
def make_remote(make_app, server):
    return lambda **options: make_app(Settings(endpoints={"cluster": server.endpoint()}), **options)


async def remote_tab(pilot):
    screen = await ready(pilot)
    await pilot.press("ctrl+t")
    await ready(pilot)
    screen.active.open_model(KEY)
    await wait_until(pilot, lambda: screen.active.model is not None and screen.active.model.path == KEY)
    return screen


def notices(app) -> str:
    return " ".join(one.message for one in app._notifications)


async def test_a_remote_tab_answers_beside_a_local_one(make_remote, server, engine):
    server.hangs("A sea")
    app = make_remote()
    async with app.run_test(size=(120, 30)) as pilot:
        screen = await remote_tab(pilot)
        local, remote = screen.tabs.sessions
        await say(pilot, "What is a tern?")
        await wait_until(pilot, lambda: remote.conversation.path()[-1].text == "A sea")
        assert remote.state is TabState.GENERATING and not engine.generations
        local.send("hello")
        await wait_until(pilot, lambda: engine.generations)
        engine.generations[0].feed("good day")
        engine.generations[0].finish()
        await wait_until(pilot, lambda: not local.busy)
        assert local.conversation.path()[-1].text == "good day" and remote.busy
        item = status_item(remote, engine.stats())
        assert (item.model, item.quantization, item.kv) == ("tern-7b", "remote", None)
        assert remote.pause() and not remote.paused
        await wait_until(pilot, lambda: "cannot be paused" in notices(app))
        remote.models.put_aside(unload=False)
        await wait_until(pilot, lambda: "runs at an endpoint" in notices(app))
        assert remote.stop() and server.gone.get(timeout=WAIT)
        await wait_until(pilot, lambda: not remote.busy)
        assert remote.conversation.path()[-1].status is Status.STOPPED
    app.end_services()


async def test_a_lost_connection_keeps_the_text_and_the_answer_goes_on(make_remote, server):
    server.models = [{"id": "tern-7b", "owned_by": "vllm", "max_model_len": 100}]
    app = make_remote()
    async with app.run_test(size=(120, 30)) as pilot:
        screen = await remote_tab(pilot)
        session = screen.active
        server.says(HEAD, event(delta={"content": "A sea"}))
        await say(pilot, "What is a tern?")
        await wait_until(pilot, lambda: not session.busy)
        answer = session.conversation.path()[-1]
        assert (answer.text, answer.status) == ("A sea", Status.ERROR)
        assert answer.error == "the connection to cluster was lost; Alt+G goes on where it stopped"
        assert context_use(session) is None
        server.answers(" bird.", prompt_tokens=20, completion_tokens=3)
        session.resume()
        await wait_until(pilot, lambda: not session.busy)
        assert (answer.text, answer.status) == ("A sea bird.", Status.COMPLETE)
        assert answer.stats.tokens == 3
    app.end_services()


async def test_an_answer_that_cannot_go_on_says_what_can_be_done(make_remote, server):
    app = make_remote()
    async with app.run_test(size=(120, 30)) as pilot:
        screen = await remote_tab(pilot)
        session = screen.active
        server.refuses(404, "no such model")
        await say(pilot, "What is a tern?")
        await wait_until(pilot, lambda: not session.busy)
        assert "no model tern-7b" in session.conversation.path()[-1].error
        session.resume()
        await wait_until(pilot, lambda: "has it written anew" in notices(app))
    app.end_services()


async def test_a_chat_finds_its_endpoint_again_and_falls_back_without_it(make_remote, make_app, server):
    app = make_remote()
    async with app.run_test(size=(120, 30)) as pilot:
        screen = await remote_tab(pilot)
        server.answers("A bird.")
        await say(pilot, "What is a tern?")
        await wait_until(pilot, lambda: not screen.active.busy)
        await pilot.press("ctrl+q")
    app.end_services()
    app = make_remote()
    async with app.run_test(size=(120, 30)) as pilot:
        screen = await ready(pilot)
        assert [Path(s.conversation.model_path) == KEY for s in screen.tabs.sessions] == [False, True]
        assert screen.tabs.sessions[1].model.kind == "remote"
        assert screen.tabs.sessions[1].conversation.path()[-1].model == str(KEY)
        await pilot.press("ctrl+q")
    app.end_services()
    app = make_app()
    async with app.run_test(size=(120, 30)) as pilot:
        screen = await ready(pilot)
        assert all(session.model.local is not None for session in screen.tabs.sessions)
    app.end_services()


async def test_a_message_is_answered_several_times_by_as_many_requests(make_remote, server):
    app = make_remote()
    async with app.run_test(size=(120, 30)) as pilot:
        screen = await remote_tab(pilot)
        for word in ("one", "two"):
            server.answers(word)
        assert screen.active.fan_out("What is a tern?", read_wish("seeds 4 5").variants)
        await wait_until(pilot, lambda: not screen.active.busy)
        sent = [asked.body for asked in server.asked if asked.body]
        assert [body["seed"] for body in sent] == [4, 5]
        leaf = screen.active.conversation.leaf
        assert {node.text for node in screen.active.conversation.siblings(leaf)} == {"one", "two"}
    app.end_services()


async def test_the_picker_lists_endpoints_and_says_why_one_is_dead(make_app, server):
    server.models = [{"id": "tern-7b", "max_model_len": 4096}, {"id": "acme/gull"}]
    dead = Endpoint("attic", "http://127.0.0.1:9/v1")
    app = make_app(
        Settings(endpoints={"cluster": server.endpoint(), "attic": dead}), find_models=lambda search: []
    )
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await ready(pilot)
        await pilot.press("ctrl+o")
        await wait_until(pilot, lambda: isinstance(app.screen, ModelPicker))
        picker = app.screen
        await wait_until(pilot, lambda: all(picker._list.endpoints.values()))
        titles = [getattr(row, "title", "") for row in picker._shown]
        assert titles == ["At cluster", "tern-7b", "acme/gull", "At attic", "http://127.0.0.1:9/v1"]
        assert "is the server running?" in picker._shown[-1].problem
        await pilot.press(*"gull")
        await wait_until(pilot, lambda: len(picker._shown) == 2)
        await pilot.press("enter")
        expected = endpoint_key("cluster", "acme/gull")
        await wait_until(
            pilot, lambda: screen.active.model is not None and screen.active.model.path == expected
        )
        assert context_use(screen.active) is None
    app.end_services()
