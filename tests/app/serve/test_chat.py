"""OpenAI's chats and texts: what is asked of the engine, and how answers look."""

import pytest

from app.serve.http.fields import Fields
from app.serve.protocols.shared import _REFUSED
from engine import FinishReason
from tests.app.serve.scripted import ScriptedServer, events_of, joined, said

CHAT = "/v1/chat/completions"


async def test_a_whole_answer(server):
    answer = (await server.post(CHAT, said(max_tokens=9))).json()
    (choice,) = answer["choices"]
    assert answer["object"] == "chat.completion" and answer["model"] == "scripted"
    assert choice["message"] == {"role": "assistant", "content": "Good day."}
    assert choice["finish_reason"] == "stop"
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["completion_tokens"] == 3 and answer["usage"]["total_tokens"] == 6
    (row,) = server.rows
    assert (row.kind, row.prompt_tokens, row.completion_tokens, row.ending) == ("chat", 3, 3, "stop")
    assert server.desk.taken == 0


async def test_a_streamed_answer(server):
    response = await server.post(CHAT, said(stream=True, stream_options={"include_usage": True}))
    chunks = events_of(response)
    assert response.text.endswith("data: [DONE]\n\n")
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert joined(chunks[:-1], lambda one: one["choices"][0]["delta"].get("content")) == "Good day."
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 3
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert server.desk.taken == 0


async def test_who_is_late_gets_fewer_pieces(server):
    server.answer("<think>", "a", "b", "</think>", "c", "d")
    chunks = events_of(await server.post(CHAT, said(stream=True)))
    assert [chunk["choices"][0]["delta"] for chunk in chunks[1:-1]] == [
        {"reasoning_content": "ab"},
        {"content": "cd"},
    ]


async def test_what_is_asked_of_the_engine(server):
    body = said(
        temperature=0.5,
        top_p=0.9,
        min_p=0.1,
        top_k=-1,
        presence_penalty=1,
        frequency_penalty=2,
        repetition_penalty=1.5,
        logit_bias={"7": -100},
        seed=-1,
        n=2,
        stop=["a", "b"],
        max_completion_tokens=5,
        ignore_eos=True,
    )
    assert (await server.post(CHAT, body)).status_code == 200
    first, second = (generation.request for generation in server.generations)
    params = first.sampling
    assert (params.temperature, params.top_p, params.min_p, params.top_k) == (0.5, 0.9, 0.1, 0)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (1, 2, 1.5)
    assert dict(params.logit_bias) == {7: -100}
    assert params.seed == (1 << 64) - 1 and second.sampling.seed == 0
    assert (first.stop, first.max_tokens, first.ignore_eog) == (("a", "b"), 5, True)


async def test_what_a_request_leaves_out_is_as_usual(server):
    await server.post(CHAT, said(top_p=0.5, temperature=None))
    params = server.generations[0].request.sampling
    assert (params.temperature, params.top_k, params.top_p) == (0.6, 20, 0.5)


async def test_more_tokens_than_there_is_room_for_go_to_the_contexts_end(server):
    assert (await server.post(CHAT, said(max_tokens=10**6))).status_code == 200
    assert server.generations[0].request.max_tokens is None


async def test_reasoning_stands_in_its_own_field(server):
    server.answer("<think>", "I see", "</think>", "Yes.")
    message = (await server.post(CHAT, said())).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("I see", "Yes.")
    chunks = events_of(await server.post(CHAT, said(stream=True)))
    assert joined(chunks, lambda one: one["choices"][0]["delta"].get("reasoning_content")) == "I see"
    assert joined(chunks, lambda one: one["choices"][0]["delta"].get("content")) == "Yes."


async def test_messages_reach_the_template(server):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "c", "reasoning_content": "hm"},
        {"role": "user", "content": "d"},
    ]
    body = {"messages": messages, "chat_template_kwargs": {"enable_thinking": False}}
    assert (await server.post(CHAT, body)).status_code == 200
    ((given, options),) = server.template.asked
    assert [(one.role, one.content, one.reasoning) for one in given] == [
        ("system", "be kind", None),
        ("user", "a\nb", None),
        ("assistant", "c", "hm"),
        ("user", "d", None),
    ]
    assert str(options["thinking"]) == "off" and options["tools"] is None


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"seed": "one"}, "seed"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop": ["a"] * 65}, "stop"),
        ({"stop": ["a" * 10_001]}, "stop"),
        ({"logit_bias": dict.fromkeys(map(str, range(1025)), 1)}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"logit_bias": {"1": "much"}}, "logit_bias.1"),
        ({"stream": "yes"}, "stream"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"chat_template_kwargs": {"other": 1}}, "chat_template_kwargs.other"),
    ],
)
async def test_what_cannot_be_served_is_refused_by_its_name(server, more, field):
    response = await server.post(CHAT, said() | more)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == field and error["message"].startswith(field)
    assert error["type"] == "invalid_request_error"
    assert server.generations == [] and server.desk.taken == 0
    assert f"{CHAT}  400  {field}" in server.rows[0].text()


@pytest.mark.parametrize("name", _REFUSED)
async def test_no_field_with_a_meaning_is_passed_over(server, name):
    response = await server.post(CHAT, said(**{name: "something"}))
    assert response.status_code == 400 and response.json()["error"]["param"] == name
    for harmless in (None, *_REFUSED[name]):
        Fields({name: harmless}).only(name, *_REFUSED[name], why="")


async def test_other_fields_are_passed_over(server):
    body = said(store=True, metadata={"a": "b"}, user="me", service_tier="auto", something_new={"x": 1})
    assert (await server.post(CHAT, body)).status_code == 200


async def test_a_model_that_is_not_there(server):
    response = await server.post(CHAT, said() | {"model": "gpt-9"})
    assert response.status_code == 404
    assert "scripted" in response.json()["error"]["message"]
    assert (await server.post(CHAT, said() | {"model": "Other-Name"})).status_code == 200


async def test_a_prompt_that_is_too_long():
    server = ScriptedServer(context_length=8)
    error = (await server.post(CHAT, said("a " * 20))).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "at most 8" in error["message"]
    assert server.desk.taken == 0


async def test_a_template_that_refuses(server):
    server.template.failure = "roles must alternate"
    response = await server.post(CHAT, said())
    assert response.status_code == 400 and "roles must alternate" in response.text


async def test_a_failure_names_no_path(server):
    server.answer(
        "Oh", reason=FinishReason.ERROR, error="/home/somebody/models/scripted.gguf: cannot be read"
    )
    response = await server.post(CHAT, said())
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "scripted: cannot be read"
    (*_, last) = events_of(await server.post(CHAT, said(stream=True)))
    assert last["error"]["message"] == "scripted: cannot be read"
    assert server.desk.taken == 0


async def test_an_unexpected_failure_says_nothing_of_this_computer(server, monkeypatch):
    def fail(_request):
        raise OSError("/home/somebody/secret")

    monkeypatch.setattr(server.model, "submit", fail)
    response = await server.post(CHAT, said())
    assert response.status_code == 500 and "somebody" not in response.text
    assert server.desk.taken == 0


async def test_texts_go_on(server):
    body = {"prompt": ["ab", [5, 6, 7]], "max_tokens": 4, "n": 2}
    answer = (await server.post("/v1/completions", body)).json()
    assert [choice["text"] for choice in answer["choices"]] == ["Good day."] * 4
    ids = [generation.request.prompt_ids for generation in server.generations]
    assert ids == [(1, 97, 98), (1, 97, 98), (5, 6, 7), (5, 6, 7)]
    assert answer["usage"]["prompt_tokens"] == 6 and answer["usage"]["completion_tokens"] == 12
    chunks = events_of(await server.post("/v1/completions", {"prompt": "a", "stream": True}))
    assert joined(chunks, lambda one: one["choices"][0]["text"]) == "Good day."


@pytest.mark.parametrize("prompt", [None, [], [[]], [300], [True], {"a": 1}, [["a"]]])
async def test_texts_that_are_none(server, prompt):
    response = await server.post("/v1/completions", {"prompt": prompt})
    assert response.status_code == 400 and response.json()["error"]["param"] == "prompt"


async def test_tokens_of_texts(server):
    assert (await server.post("/tokenize", {"content": "ab"})).json()["tokens"] == [97, 98]
    counted = (await server.post("/tokenize", {"prompt": "ab"})).json()
    assert (counted["tokens"], counted["count"], counted["max_model_len"]) == ([1, 97, 98], 3, 2048)
    assert (await server.post("/tokenize", said())).json()["count"] == 3
    assert (await server.post("/detokenize", {"tokens": [97, 98]})).json()["content"] == "ab"
    assert (await server.post("/detokenize", {"tokens": [-1]})).status_code == 400


async def test_lists_health_figures_and_what_is_not_there(server):
    await server.post(CHAT, said())
    (model,) = (await server.get("/v1/models")).json()["data"]
    assert model["id"] == "scripted" and "somebody" not in str(model)
    assert (await server.get("/v1/models/scripted")).json()["id"] == "scripted"
    assert (await server.get("/health")).json() == {"status": "ok"}
    figures = (await server.get("/metrics")).text
    assert "vllm:generation_tokens_total 3.0" in figures
    assert 'vllm:request_success_total{finished_reason="stop"} 1.0' in figures
    assert 'tui_chat:kv_bytes{kind="cached"} 1.5e+08' in figures
    assert (await server.post("/v1/embeddings", {"input": "a"})).status_code == 400
    assert (await server.get("/v1/nothing")).json()["error"]["type"] == "not_found_error"
    assert (await server.get(CHAT)).status_code == 405
