"""The engine itself behind the server: many at once, some of whom go, and nothing of them stays."""

import asyncio
import json

import httpx
import pytest

from app.serve.program import ServeOptions, make_application
from app.serve.requests.served import Served, ServedModels
from engine import Engine, SamplingParams, SequenceState

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def engine():
    with Engine("cpu", debug=True) as engine:
        yield engine


@pytest.fixture(scope="module")
def application(engine, small_model):
    model = engine.load(small_model)
    served = Served(model, "small", frozenset(), SamplingParams(temperature=0.0))
    return make_application(ServedModels(lambda: [served]), engine.stats, ServeOptions(), lambda _row: None)


@pytest.fixture
async def client(application):
    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=120) as client:
        yield client


def body(text, **more):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 8, **more}


async def all_ended(engine):
    """Wait until the engine holds no sequence; its snapshot comes with its next tick."""
    while (stats := engine.stats()).sequences or stats.blocks_used:
        await asyncio.sleep(0.001)


async def test_streamed_or_whole_an_answer_is_the_same(client):
    whole = (await client.post(CHAT, json=body("hello"))).json()["choices"][0]
    streamed = await client.post(CHAT, json=body("hello", stream=True))
    chunks = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == whole["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]


async def test_every_protocol_counts_the_same_tokens(client):
    asked = body("hello", temperature=0)
    chat = (await client.post(CHAT, json=asked)).json()["usage"]
    message = (await client.post("/v1/messages", json=asked)).json()["usage"]
    counted = (await client.post("/v1/messages/count_tokens", json=asked)).json()["input_tokens"]
    tokens = (await client.post("/tokenize", json=asked)).json()["tokens"]
    text = (await client.post("/detokenize", json={"tokens": tokens})).json()["content"]
    read_again = (await client.post("/tokenize", json={"content": text})).json()["tokens"]
    in_message = message["input_tokens"] + message["cache_read_input_tokens"]
    assert chat["prompt_tokens"] == in_message == counted == len(tokens)
    assert read_again == tokens


async def test_a_seed_decides_what_is_written(client):
    asked = body("hello", temperature=2.0, seed=7, n=2)
    first, second = [
        [choice["message"]["content"] for choice in (await client.post(CHAT, json=asked)).json()["choices"]]
        for _ in range(2)
    ]
    assert first == second and first[0] != first[1]


async def test_many_at_once_some_of_whom_go(client, engine):
    answers = [asyncio.create_task(client.post(CHAT, json=body(f"{n} hello"))) for n in range(64)]
    goes = [asyncio.create_task(client.post(CHAT, json=body("go " * n, max_tokens=400))) for n in range(1, 9)]
    while not engine.stats().sequences:
        await asyncio.sleep(0.001)
    for task in goes:
        task.cancel()
    for answer in await asyncio.gather(*answers):
        assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] > 0
    await all_ended(engine)


async def test_256_run_or_wait_64_of_them_at_once_and_no_more_come_in(client, engine):
    """Two requests of 128 answers each, which nobody reads to their end."""
    asked = body("hello", max_tokens=1500, ignore_eos=True, n=128, temperature=1.0)
    both = [asyncio.create_task(client.post(CHAT, json=asked)) for _ in range(2)]

    def running() -> int:
        return sum(one.state in (SequenceState.PREFILL, SequenceState.DECODE) for one in stats.sequences)

    while len((stats := engine.stats()).sequences) < 256 or running() < 64:
        assert not any(task.done() for task in both)
        await asyncio.sleep(0.001)
    refused = await client.post(CHAT, json=body("hello"))
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
    for task in both:
        task.cancel()
    await all_ended(engine)
    assert (await client.post(CHAT, json=body("hello"))).status_code == 200


async def test_after_refusals_nothing_stays(client, engine):
    for wrong in ({"max_tokens": 0}, {"logit_bias": {"1": "a"}}, {"tools": [{"function": {"name": "f"}}]}):
        assert (await client.post(CHAT, json=body("hello") | wrong)).status_code == 400
    assert (await client.post(CHAT, json=body("hello " * 5000))).status_code == 400
    assert (await client.post(CHAT, json=body("hello"))).status_code == 200
    await all_ended(engine)


SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["tern", "gull"]}, "count": {"type": "integer", "maximum": 9}},
    "required": ["kind", "count"],
    "additionalProperties": False,
}


async def test_an_answer_follows_its_schema_at_any_temperature(client, engine):
    wanted = {"type": "json_schema", "json_schema": {"name": "bird", "schema": SCHEMA, "strict": True}}
    asked = body("a bird", response_format=wanted, temperature=5.0, top_k=0, max_tokens=200, n=4, seed=1)
    answer = (await client.post(CHAT, json=asked)).json()
    for choice in answer["choices"]:
        assert choice["finish_reason"] == "stop"
        assert set(json.loads(choice["message"]["content"])) == {"kind", "count"}
    await all_ended(engine)


async def test_a_schema_that_is_none_is_refused_with_its_place(client, engine):
    wanted = {"type": "json_schema", "json_schema": {"schema": {"properties": {"a": {"type": "text"}}}}}
    response = await client.post(CHAT, json=body("a", response_format=wanted))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "response_format.json_schema.schema.properties.a"
    for field, value in (("guided_regex", "(a"), ("guided_grammar", 'start: "a" other')):
        response = await client.post(CHAT, json=body("a", **{field: value}))
        assert response.status_code == 400 and response.json()["error"]["param"] == field
    await all_ended(engine)


async def test_logprobs_are_there_for_every_token(client):
    asked = body("hello", logprobs=True, top_logprobs=3)
    choice = (await client.post(CHAT, json=asked)).json()["choices"][0]
    told = choice["logprobs"]["content"]
    assert b"".join(bytes(one["bytes"]) for one in told).decode("utf-8", "replace").strip() == (
        choice["message"]["content"].strip()
    )
    for one in told:
        # The answer is greedy.
        assert one["logprob"] == one["top_logprobs"][0]["logprob"] < 0 and len(one["top_logprobs"]) == 3
