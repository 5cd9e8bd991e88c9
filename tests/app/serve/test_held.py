"""What answers are held to, how much is thought, how likely tokens were: from each protocol to the engine."""

import json

import pytest

from engine.api.constraint import ConstraintError, ConstraintKind
from engine.api.request import TextDelta, TokenLogprobs
from engine.api.thinking import Thinking, ThinkingSupport
from engine.api.tool_format import tool_format_of
from tests.app.serve.scripted import events_of, said

CHAT = "/v1/chat/completions"
ANY = {"type": "object"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
JSON, REGEX, GRAMMAR, CALLS, TOOLS = (
    ConstraintKind.JSON_SCHEMA,
    ConstraintKind.REGEX,
    ConstraintKind.GRAMMAR,
    ConstraintKind.CALLS,
    ConstraintKind.TOOLS,
)
FUNCTION = {"name": "weather", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}


def named(name):
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(
    ("path", "more", "kind", "text"),
    [
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, JSON, SCHEMA),
        (CHAT, {"response_format": {"type": "json_object"}}, JSON, {"type": "object"}),
        (CHAT, {"guided_json": SCHEMA}, JSON, SCHEMA),
        (CHAT, {"guided_json": json.dumps(SCHEMA)}, JSON, SCHEMA),
        (CHAT, {"guided_regex": "[0-9]+"}, REGEX, "[0-9]+"),
        (CHAT, {"guided_grammar": 'root ::= "a"'}, GRAMMAR, 'root ::= "a"'),
        (CHAT, {"guided_choice": ["a", 'b"']}, GRAMMAR, 'start: "a" | "b\\""'),
        (CHAT, {"structured_outputs": {"json": SCHEMA}}, JSON, SCHEMA),
        (CHAT, {"structured_outputs": {"regex": "a|b"}}, REGEX, "a|b"),
        ("/v1/completions", {"prompt": "a", "guided_regex": "[0-9]+"}, REGEX, "[0-9]+"),
        (
            "/v1/responses",
            {"input": "a", "text": {"format": {"type": "json_object"}}},
            JSON,
            {"type": "object"},
        ),
        (
            "/v1/responses",
            {"input": "a", "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}},
            JSON,
            SCHEMA,
        ),
        (
            "/v1/messages",
            {"max_tokens": 5, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            JSON,
            SCHEMA,
        ),
    ],
)
async def test_a_format_reaches_the_engine(server, path, more, kind, text):
    response = await server.post(path, said() | more)
    assert response.status_code == 200, response.text
    constraint = server.generations[0].request.constraint
    assert constraint.kind is kind
    assert (json.loads(constraint.text) if isinstance(text, dict) else constraint.text) == text


async def test_text_is_held_to_nothing(server):
    await server.post(CHAT, said(response_format={"type": "text"}, tool_choice="auto", guided_json=None))
    assert server.generations[0].request.constraint is None


@pytest.mark.parametrize(
    ("path", "more", "kind"),
    [
        (CHAT, {"tools": [TOOL], "tool_choice": "required"}, CALLS),
        (
            CHAT,
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
            CALLS,
        ),
        (CHAT, {"tools": [{"type": "function", "function": {**FUNCTION, "strict": True}}]}, TOOLS),
        (CHAT, {"tools": [TOOL], "tool_choice": "auto"}, None),
        (CHAT, {"tools": [TOOL], "tool_choice": "none"}, None),
        ("/v1/responses", {"tools": [{"type": "function", **FUNCTION}], "tool_choice": "required"}, CALLS),
        (
            "/v1/messages",
            {"tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "any"}},
            CALLS,
        ),
    ],
)
async def test_a_choice_of_tools_holds_the_answer_to_calls(server, path, more, kind):
    server.template.tool_format = tool_format_of("<tool_call>")
    response = await server.post(path, said(max_tokens=9, input="a") | more)
    assert response.status_code == 200, response.text
    constraint = server.generations[0].request.constraint
    assert (constraint and constraint.kind) is kind
    if kind is CALLS:
        assert constraint.tool_format is server.template.tool_format
        assert len(json.loads(constraint.text)) == 1
    told = server.template.asked[0][1]["tools"]
    assert (told is None) == (more.get("tool_choice") == "none")
    assert told is None or "strict" not in told[0]["function"]


@pytest.mark.parametrize(
    ("more", "field"),
    [
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice.function.name",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice"),
        ({"guided_regex": "a", "guided_json": {}}, "guided_regex"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"reasoning": {"max_tokens": 0}}, "reasoning.max_tokens"),
    ],
)
async def test_what_cannot_be_held_is_refused_by_its_name(server, more, field):
    server.template.tool_format = tool_format_of("<tool_call>")
    response = await server.post(CHAT, said() | more)
    assert response.status_code == 400 and response.json()["error"]["param"] == field
    assert server.desk.taken == 0


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (CHAT, {"tools": [TOOL], "response_format": {"type": "json_object"}}),
        (
            "/v1/responses",
            {"tools": [{"type": "function", **FUNCTION}], "text": {"format": {"type": "json_object"}}},
        ),
        (
            "/v1/messages",
            {
                "tools": [{"name": "weather", "input_schema": SCHEMA}],
                "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
            },
        ),
    ],
)
async def test_a_format_beside_tools_leaves_calls_of_them(server, path, more):
    server.template.tool_format = tool_format_of("<tool_call>")
    response = await server.post(path, said(max_tokens=9, input="a") | more)
    assert response.status_code == 200, response.text
    constraint = server.generations[0].request.constraint
    assert constraint.kind is ConstraintKind.JSON_SCHEMA and json.loads(constraint.text) == {"type": "object"}
    assert json.loads(constraint.calls)[0]["function"]["name"] == "weather"
    assert constraint.tool_format is server.template.tool_format


@pytest.mark.parametrize("choice", ["required", "none"])
async def test_a_choice_of_tools_decides_beside_a_format(server, choice):
    server.template.tool_format = tool_format_of("<tool_call>")
    more = {"tools": [TOOL], "tool_choice": choice, "response_format": {"type": "json_object"}}
    assert (await server.post(CHAT, said() | more)).status_code == 200
    constraint = server.generations[0].request.constraint
    assert constraint.kind is (CALLS if choice == "required" else ConstraintKind.JSON_SCHEMA)
    assert not constraint.calls


async def test_what_is_wrong_with_a_tool_beside_a_format_has_its_place(server, monkeypatch):
    server.template.tool_format = tool_format_of("<tool_call>")

    def check(constraint):
        if constraint.kind is CALLS:
            raise ConstraintError("[0].function.parameters", "is none")

    monkeypatch.setattr(server.model, "check_constraint", check, raising=False)
    more = {"tools": [TOOL], "response_format": {"type": "json_object"}}
    response = await server.post(CHAT, said() | more)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools[0].function.parameters"


EFFORTS = ThinkingSupport(True, ("low", "medium", "high"), True)
SWITCH = ThinkingSupport(True, (), True)


@pytest.mark.parametrize(
    ("path", "more", "support", "thinking"),
    [
        (CHAT, {"reasoning_effort": "high"}, EFFORTS, Thinking("high")),
        (CHAT, {"reasoning_effort": "minimal"}, EFFORTS, Thinking("low")),
        (CHAT, {"reasoning_effort": "high"}, SWITCH, Thinking("on")),
        (CHAT, {"reasoning_effort": "none"}, SWITCH, Thinking("off")),
        (CHAT, {"reasoning_effort": "high"}, ThinkingSupport(), Thinking()),
        (CHAT, {"reasoning": {"effort": "low", "max_tokens": 50}}, EFFORTS, Thinking("low", 50)),
        (CHAT, {"chat_template_kwargs": {"thinking_budget": 50}}, SWITCH, Thinking("auto", 50)),
        ("/v1/responses", {"input": "a", "reasoning": {"effort": "medium"}}, EFFORTS, Thinking("medium")),
        (
            "/v1/messages",
            {"thinking": {"type": "enabled", "budget_tokens": 2000}},
            SWITCH,
            Thinking("on", 2000),
        ),
        ("/v1/messages", {"thinking": {"type": "disabled"}}, SWITCH, Thinking("off")),
        ("/v1/messages", {"output_config": {"effort": "low"}}, EFFORTS, Thinking("low")),
    ],
)
async def test_efforts_and_budgets_become_the_choice_that_chats_have(server, path, more, support, thinking):
    server.template.thinking_support = support
    assert (await server.post(path, said(max_tokens=9) | more)).status_code == 200
    assert server.template.asked[0][1]["thinking"] == thinking


async def test_thoughts_end_at_their_budget(server):
    """What comes behind the budget is dropped, their end is put there, and the answer goes on behind it."""
    server.template.thinking_support, server.template.opened = SWITCH, True
    ids = iter(range(10, 100))

    def script(generation):
        asked = generation.request
        if not asked.answered:
            for word in ("one ", "two ", "three ", "four "):
                generation.push(TextDelta(word, (next(ids),)))
            return
        generation.again()
        generation.push(TextDelta("The answer", (next(ids),)))
        generation.finish()

    server.engine.on_submit = script
    asked = said(max_tokens=100, chat_template_kwargs={"thinking_budget": 2})
    response = (await server.post(CHAT, asked)).json()
    message = response["choices"][0]["message"]
    assert message["content"] == "The answer" and message["reasoning_content"].split() == ["one", "two"]
    first, second = server.generations
    assert first.finished.reason == "cancelled"
    ending = server.template.ending[0].token_ids
    assert second.request.prompt_ids == (*first.request.prompt_ids, 10, 11, *ending)
    assert second.request.answered == 3 and second.request.max_tokens == 97
    usage = response["usage"]
    assert usage["completion_tokens"] == 4 and usage["prompt_tokens"] == len(first.request.prompt_ids)


def scored(generation):
    told = TokenLogprobs(-0.5, ((72, -0.5), (74, -1.5)))
    generation.push(TextDelta("H", (72,), "", told))
    generation.push(TextDelta("i", (105,), "", TokenLogprobs(-0.25, ((105, -0.25), (74, -3.0)))))
    generation.finish()


async def test_logprobs_of_chats(server):
    server.engine.on_submit = scored
    choice = (await server.post(CHAT, said(logprobs=True, top_logprobs=2))).json()["choices"][0]
    first, second = choice["logprobs"]["content"]
    assert first == {
        "token": "H",
        "logprob": -0.5,
        "bytes": [72],
        "top_logprobs": [
            {"token": "H", "logprob": -0.5, "bytes": [72]},
            {"token": "J", "logprob": -1.5, "bytes": [74]},
        ],
    }
    assert second["token"] == "i" and server.generations[0].request.top_logprobs == 2
    response = await server.post(CHAT, said(logprobs=True, stream=True))
    told = [
        entry["token"]
        for chunk in events_of(response)
        for entry in ((chunk["choices"][0]["logprobs"] or {}).get("content") or [])
    ]
    assert told == ["H", "i"] and server.generations[1].request.top_logprobs == 0


async def test_logprobs_of_completions(server):
    server.engine.on_submit = scored
    response = (await server.post("/v1/completions", {"prompt": "a", "logprobs": 2})).json()
    assert response["choices"][0]["logprobs"] == {
        "tokens": ["H", "i"],
        "token_logprobs": [-0.5, -0.25],
        "top_logprobs": [{"H": -0.5, "J": -1.5}, {"i": -0.25, "J": -3.0}],
        "text_offset": [0, 1],
    }


async def test_who_does_not_ask_is_told_none(server):
    choice = (await server.post(CHAT, said())).json()["choices"][0]
    assert choice["logprobs"] is None and server.generations[0].request.top_logprobs is None


INCLUDED = {"include": ["message.output_text.logprobs"]}


async def test_logprobs_of_responses(server):
    server.engine.on_submit = scored
    response = await server.post("/v1/responses", {"input": "a", "top_logprobs": 2} | INCLUDED)
    first, second = response.json()["output"][0]["content"][0]["logprobs"]
    assert first["token"] == "H" and first["logprob"] == -0.5 and first["bytes"] == [72]
    assert [one["token"] for one in first["top_logprobs"]] == ["H", "J"]
    assert second["token"] == "i" and server.generations[0].request.top_logprobs == 2

    events = events_of(await server.post("/v1/responses", {"input": "a", "stream": True} | INCLUDED))
    deltas = [one for one in events if one["type"] == "response.output_text.delta"]
    assert [entry["token"] for one in deltas for entry in one["logprobs"]] == ["H", "i"]
    (done,) = [one for one in events if one["type"] == "response.output_text.done"]
    last = events[-1]["response"]["output"][0]["content"][0]
    assert (
        [entry["token"] for entry in done["logprobs"]] == ["H", "i"] == [e["token"] for e in last["logprobs"]]
    )
    assert server.generations[1].request.top_logprobs == 0


async def test_responses_without_them_are_told_none(server):
    body = {"input": "a", "include": ["reasoning.encrypted_content"], "top_logprobs": 0}
    response = await server.post("/v1/responses", body)
    assert response.json()["output"][0]["content"][0]["logprobs"] == []
    assert server.generations[0].request.top_logprobs is None
    response = await server.post("/v1/responses", {"input": "a", "top_logprobs": 2})
    assert response.status_code == 400 and response.json()["error"]["param"] == "top_logprobs"
