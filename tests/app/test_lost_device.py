"""Two devices of one program, of which one is lost: its chats say so and go on, on the other, at a key.

So do requests of other programs, which are told to come back.
"""

import asyncio
import shutil
from dataclasses import replace

import httpx
import pytest

from app.chat.conversation import Conversation, Status
from app.chat.events import Notice
from app.chat.prompt import answer_footer
from app.chat.pump import Pump
from app.chat.session import ChatSession
from app.chat.shared import Services
from app.cli.serve import _moving
from app.models.loader import EngineService
from app.serve.metrics import Metrics
from app.serve.program import ServeOptions, make_application
from app.serve.requests.served import Served, ServedModels
from app.widgets.live_panel import total_rows
from engine import EngineFailedError, SamplingParams
from engine.several import engines as several
from engine.several.engines import open_engine
from tests.app.chat.test_session_faults import Saved, until
from tests.support.fault_bench import Tap

LOST = "CUDA error: an illegal memory access was encountered"
TOKENS = 24


@pytest.fixture
def files(small_model, tmp_path):
    return [shutil.copy(small_model, tmp_path / f"{name}.gguf") for name in ("one", "two")]


@pytest.fixture
def engines(monkeypatch):
    monkeypatch.setattr(several, "device_names", lambda _device: ("cpu", "cpu"))
    options = {"weight_dtype": "float32", "kv_dtype": "float32", "threads": 1, "kv_budget_bytes": 32 << 20}
    with open_engine(**options) as both:
        yield both


@pytest.fixture(autouse=True)
def rank(engines, monkeypatch):
    """The engine with the fewest models has the most memory free."""
    for engine in engines._engines:
        plan = engine.plan_load

        def planned(*what, plan=plan, engine=engine, **more):
            return replace(plan(*what, **more), free_bytes=(9 - len(engine.stats().models)) << 40)

        monkeypatch.setattr(engine, "plan_load", planned)


def lose(engine, monkeypatch) -> None:
    """A pass of an answer that has eight tokens fails, and then all that asks for the device's memory."""

    def poisoned(*_what) -> None:
        raise RuntimeError(LOST)

    def die(batch) -> None:
        if any(sequence.num_generated >= 8 for sequence in batch.decode):
            poisoned()

    def install() -> None:
        for resident in engine._loop.models:
            tap = resident.runner = Tap(resident.runner)
            tap.before = die

    engine._loop.call(install)
    # The healthy engine never gets there.
    monkeypatch.setattr("engine.core.recovery.device_recovery.check_device", poisoned)
    monkeypatch.setattr(engine, "_most_kv", poisoned)


def opened(services: Services, path, told: list) -> ChatSession:
    conversation = Conversation()
    conversation.sampling = SamplingParams(temperature=0.0)
    conversation.max_tokens = TOKENS
    session = ChatSession(conversation, services, lambda _session, event: told.append(event))
    session.open_model(path)
    return session


def answer(session: ChatSession):
    return session.conversation.last_answer()


async def asked(session: ChatSession, text: str) -> str:
    session.send(text)
    await until(lambda: not session.busy)
    return answer(session).text


async def test_chats_of_a_lost_device_go_on_on_the_other_at_a_key(engines, files, monkeypatch):
    loop, told = asyncio.get_running_loop(), []
    service = EngineService(lambda: engines, loop.call_soon_threadsafe)
    services = Services(service, Pump(loop, lambda: None), Saved())
    service.start()
    tabs = [opened(services, path, told) for path in (files[0], files[0], files[1])]
    await until(lambda: all(tab.model is not None for tab in tabs))
    first, beside, healthy = tabs
    wanted = [await asked(tab, "Tell me of terns.") for tab in tabs]
    for tab in tabs:
        tab.conversation.leaf = None

    lost, other = engines._engines
    lose(lost, monkeypatch)
    for tab in (first, healthy):
        tab.send("Tell me of terns.")
    await until(lambda: not any(tab.busy for tab in tabs))
    assert answer(healthy).text == wanted[2] and answer(healthy).status is Status.COMPLETE
    node = answer(first)
    assert node.status is Status.ERROR and wanted[0].startswith(node.text) and node.text
    footer = answer_footer(first.conversation, node, "^R", "^O")
    assert "illegal memory access" in footer and "its models can go on on cpu" in footer
    assert "goes on where it stopped. Press ^R to try again." in footer and "restart" not in footer

    stats = engines.stats()
    assert [bool(part.failure) for part in stats.parts] == [True, False] and not stats.failure
    assert "lost until a restart" in str(total_rows(stats, 44))
    assert b'tui_chat:device_lost{device="cpu"} 1.0' in Metrics(engines.stats).text()
    assert engines.evict_kv("nobody") == 0
    assert engines.pause_idle(1e9) == []
    await until(lambda: (detail := engines.detail()) is not None and detail.stats.parts[0].failure)

    told.clear()
    first.resume()
    await until(lambda: not first.busy)
    assert answer(first).text.startswith(wanted[0]) and answer(first).status is Status.COMPLETE
    assert [len(engine.stats().models) for engine in engines._engines] == [
        0,
        2,
    ] and first.model.local.device == "cpu"
    assert await asked(healthy, "And of gulls?")
    assert await asked(beside, "Tell me of terns.") == wanted[1]
    assert beside.model.local is first.model.local and len(engines.stats().models) == 2
    assert not [event for event in told if isinstance(event, Notice)]

    lose(other, monkeypatch)
    healthy.send("And of auks?")
    await until(lambda: not healthy.busy)
    assert "restart the program" in answer(healthy).error and "go on" not in answer(healthy).error[-40:]
    assert "restart the program" in engines.stats().failure
    with pytest.raises(EngineFailedError):
        engines.load(files[0])
    for tab in tabs:
        tab.close()
    service.close()


async def test_requests_of_a_lost_device_are_told_to_come_back(engines, files, monkeypatch):
    usual = SamplingParams(temperature=0.0)
    served = [Served(engines.load(file), file.stem, frozenset(), usual) for file in files]
    models = ServedModels(lambda: served, None, _moving(engines))
    application = make_application(models, engines.stats, ServeOptions(), lambda _row: None)
    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client:

        async def ask(**more) -> httpx.Response:
            body = {"messages": [{"role": "user", "content": "Terns?"}], "max_tokens": TOKENS, **more}
            return await client.post("/v1/chat/completions", json=body)

        wanted = [(await ask(model=name)).json()["choices"] for name in ("one", "two")]
        lose(engines._engines[0], monkeypatch)
        ended, other = await asyncio.gather(ask(), ask(model="two"))
        assert other.json()["choices"] == wanted[1]
        assert ended.status_code == 500 and "illegal memory access" in ended.json()["error"]["message"]
        again = await ask()
        assert again.status_code == 503 and again.headers["retry-after"] == "5"
        assert "one: the device that had it failed; another one loads it" in again.text
        assert (await ask(model="two")).json()["choices"] == wanted[1]
        async with asyncio.timeout(60):
            while (again := await ask(model="one")).status_code == 503:
                await asyncio.sleep(0.01)
        assert again.json()["choices"] == wanted[0]
        assert (await client.get("/health")).status_code == 200
        lose(engines._engines[1], monkeypatch)
        await ask()
        last = await ask()
        assert last.status_code == 503 and "restart the program" in last.json()["error"]["message"]
        assert (await client.get("/health")).status_code == 503
