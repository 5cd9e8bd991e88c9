"""Who is served, how much at once, and what a request may take."""

import asyncio
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.serve.http.limits import Access, HttpLimits, is_loopback
from app.serve.http.streams import EventStream, TextEvents, event
from tests.app.serve.scripted import ScriptedServer, said

CHAT = "/v1/chat/completions"
POSTS = (
    CHAT,
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
)


async def test_beyond_the_bound_requests_are_told_to_come_again():
    server = ScriptedServer(most_requests=2)
    async with server.client() as client:
        running = [asyncio.create_task(client.post(CHAT, json=said())) for _ in range(2)]
        while len(server.generations) < 2:
            await asyncio.sleep(0)
        refused = await client.post(CHAT, json=said())
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert (await client.get("/health")).status_code == 200
        for generation in server.generations:
            generation.finish()
        assert [(await one).status_code for one in running] == [200, 200]
        server.answer("ok")
        assert (await client.post(CHAT, json=said())).status_code == 200
        assert (await client.post(CHAT, json=said(n=3))).status_code == 400
    assert server.desk.taken == 0
    assert 'tui_chat:requests_refused_total{status="429"} 1.0' in (await server.get("/metrics")).text


async def test_a_body_that_is_too_long():
    server = ScriptedServer(limits=HttpLimits(body_bytes=100))
    assert (await server.post(CHAT, said("a" * 100))).status_code == 413

    async def pieces():
        for _ in range(20):
            yield b" " * 10

    async with server.client() as client:
        assert (await client.post(CHAT, content=pieces())).status_code == 413
    assert server.generations == []


async def test_a_body_that_does_not_come():
    server = ScriptedServer(limits=HttpLimits(body_seconds=0.01))
    never = asyncio.Event()

    async def pieces():
        yield b"{"
        await never.wait()

    async with server.client() as client:
        response = await client.post(CHAT, content=pieces())
    assert response.status_code == 408


async def test_bodies_that_come_at_the_same_time_have_so_much_room_and_no_more():
    server = ScriptedServer(limits=HttpLimits(body_bytes=200, all_bodies_bytes=300))
    server.answer("ok")
    body = json.dumps(said("a" * 90)).encode()
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def pieces():
        yield b" " * (200 - len(body))
        yield body[:-1]
        begun.set()
        await go_on.wait()
        yield body[-1:]

    async with server.client() as client:
        first = asyncio.create_task(client.post(CHAT, content=pieces()))
        await begun.wait()
        refused = await client.post(CHAT, content=body)
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        assert (await client.post("/tokenize", json={"content": "a"})).status_code == 200
        go_on.set()
        assert (await first).status_code == 200
        for _ in range(3):
            assert (await client.post(CHAT, content=body)).status_code == 200


async def test_a_token_is_asked_for():
    server = ScriptedServer(access=Access("secret", loopback=False))
    server.answer("ok")
    for headers in (
        {},
        {"authorization": "Bearer other"},
        {"authorization": "Basic secret"},
        {"x-api-key": b"\xe9"},
    ):
        response = await server.post(CHAT, said(), **headers)
        assert response.status_code == 401 and "secret" not in response.text
    assert (await server.get("/nothing")).status_code == 401
    assert (await server.get("/health")).status_code == 200
    assert (await server.post(CHAT, said(), authorization="Bearer secret")).status_code == 200
    assert (
        await server.post("/v1/messages", said(max_tokens=1), **{"x-api-key": "secret"})
    ).status_code == 200


async def test_web_pages_are_not_served(server):
    assert (await server.post(CHAT, said(), origin="http://evil.example")).status_code == 403
    assert (await server.get("/v1/models", host="evil.example")).status_code == 403
    assert (await server.get("/v1/models", host="[")).status_code == 403
    for host in ("localhost:8080", "127.0.0.1", "[::1]:8080"):
        assert (await server.get("/v1/models", host=host)).status_code == 200
    assert server.generations == []


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("example.org", False),
    ],
)
def test_what_is_this_computer_alone(host, expected):
    assert is_loopback(host) is expected


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"model": NaN}',
        b"[" * 100_000,
        b'{"a": ' * 200 + b"1" + b"}" * 200,
        b'{"seed": ' + b"9" * 5000 + b"}",
    ],
    ids=["empty", "cut", "list", "null", "bytes", "nan", "brackets", "deep", "number"],
)
async def test_bodies_that_are_no_requests(server, path, body):
    response = await server.post(path, body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_text_that_is_no_unicode_is_answered(server):
    body = json.dumps(said("\ud800") | {"tools": [], "stop": ["\udfff"]}).encode()
    assert (await server.post(CHAT, body)).status_code == 200
    assert (
        await server.post("/v1/responses", b'{"input": "a", "instructions": "\\ud800"}')
    ).status_code == 200
    assert (await server.post(CHAT, b'{"model": "\\ud800", "messages": []}')).status_code in (400, 404)


NAMES = (
    "messages",
    "role",
    "content",
    "prompt",
    "input",
    "tools",
    "type",
    "function",
    "name",
    "stop",
    "n",
    "seed",
    "logit_bias",
    "max_tokens",
    "stream",
    "temperature",
    "tokens",
    "system",
    "user",
    "text",
    "tool_choice",
    "stream_options",
    "model",
    "thinking",
    "reasoning",
    "tool_calls",
    "call_id",
    "arguments",
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 1 << 70),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(NAMES),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=6,
)
BODIES = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6)


async def check_body(server: ScriptedServer, path: str, wild: dict[str, object]) -> None:
    """Whatever it holds, a body is answered or refused, and leaves nothing behind."""
    start = said(max_tokens=3, input="a", prompt="a", content="a", tokens=[97])
    response = await server.post(path, json.dumps({**start, **wild}).encode())
    assert response.status_code in (200, 400, 404), response.text
    assert server.desk.taken == 0
    assert all(generation.finished is not None for generation in server.generations)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(path=st.sampled_from(POSTS), wild=BODIES)
def test_any_body_is_answered_or_refused(path, wild):
    server = ScriptedServer(most_requests=1000)
    server.answer("Good", " day.")
    asyncio.run(check_body(server, path, wild))


async def test_a_client_that_takes_nothing_is_given_up():
    closed, never = asyncio.Event(), asyncio.Event()

    async def events():
        while True:
            yield b"data: 1\n\n"

    async def receive():
        await never.wait()

    async def send(message):
        if message["type"] == "http.response.body":
            await never.wait()

    await EventStream(events(), closed.set, 0.001)({}, receive, send)
    assert closed.is_set()


def test_an_event_is_one_line_whatever_a_client_takes_for_one():
    text = "a\x85b\u2028c\u2029d\x1ce\x0bf\r\ng é"
    sent = event({"text": text}, "delta").decode()
    name, data, rest = sent.splitlines()
    assert name == "event: delta" and rest == "" and "é" in data
    assert json.loads(data.removeprefix("data: ")) == {"text": text}


@given(st.text())
def test_an_event_of_a_text_is_as_if_all_of_it_was_encoded(text):
    def whole(text):
        return event({"id": 'a"b', "choices": [{"delta": {"content": text}, "logprobs": None}]})

    assert TextEvents(whole).of(text) == whole(text)
