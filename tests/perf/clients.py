"""The clients of OpenAI and Anthropic against a running server: every protocol, whole and streamed.

    tui-chat serve -m builtin &
    python -m tests.perf.clients http://127.0.0.1:8080 [MODEL]

Needs the packages `openai` and `anthropic`. Ends with an error at the first answer that is not as it should
be.
"""

import json
import sys
from collections.abc import Callable

import anthropic
import openai

QUESTION = "Say hello in one short sentence."
BIRD = {
    "type": "object",
    "properties": {"bird": {"enum": ["tern", "gull"]}},
    "required": ["bird"],
    "additionalProperties": False,
}
TOOL = {"name": "get_weather", "description": "The weather of a city", "parameters": {"type": "object"}}


def chat(client: openai.OpenAI, model: str) -> str:
    messages = [{"role": "user", "content": QUESTION}]
    both = client.chat.completions.create(model=model, messages=messages, max_tokens=24, seed=1, n=2)
    assert len(both.choices) == 2 and all(choice.message.content for choice in both.choices)
    whole = client.chat.completions.create(model=model, messages=messages, max_tokens=24, seed=1)
    assert whole.usage.completion_tokens > 0
    stream = client.chat.completions.create(
        model=model,
        messages=messages,
        max_tokens=24,
        seed=1,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content, (text, whole.choices[0].message.content)
    assert chunks[-1].usage.completion_tokens > 0
    return text


def completion(client: openai.OpenAI, model: str) -> str:
    options = {"model": model, "prompt": "Once upon a time", "max_tokens": 16, "temperature": 0}
    whole = client.completions.create(**options)
    text = "".join(chunk.choices[0].text for chunk in client.completions.create(**options, stream=True))
    assert text == whole.choices[0].text
    return text


def response(client: openai.OpenAI, model: str) -> str:
    options = {"model": model, "input": QUESTION, "max_output_tokens": 24, "temperature": 0}
    whole = client.responses.create(**options, instructions="Be kind.")
    assert whole.output_text and whole.usage.output_tokens > 0
    events = list(client.responses.create(**options, instructions="Be kind.", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text
    if events[-1].type == "response.completed":
        # The client knows no end but this.
        with client.responses.stream(**options, instructions="Be kind.") as stream:
            assert stream.get_final_response().output_text == text
    return text


def message(client: anthropic.Anthropic, model: str) -> str:
    options = {
        "model": model,
        "system": "Be kind.",
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 24,
        # Later clients have no argument for it.
        "extra_body": {"temperature": 0},
    }
    whole = client.messages.create(**options)
    with client.messages.stream(**options) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert final.stop_reason in ("end_turn", "max_tokens") and final.usage.output_tokens > 0
    counted = client.messages.count_tokens(
        model=model, system=options["system"], messages=options["messages"]
    )
    used = whole.usage
    assert counted.input_tokens == used.input_tokens + used.cache_read_input_tokens
    return text


def refusals(client: openai.OpenAI, other: anthropic.Anthropic, model: str) -> str:
    """What is not served raises the clients' own errors, which name the field."""
    messages = [{"role": "user", "content": QUESTION}]
    said = []
    for options in ({"top_logprobs": 2}, {"response_format": {"type": "xml"}}, {"temperature": -1}):
        said.append(_refused(openai.BadRequestError, client.chat.completions.create,
                             model=model, messages=messages, **options))  # fmt: skip
    _refused(openai.NotFoundError, client.chat.completions.create, model="no-such", messages=messages)
    _refused(openai.BadRequestError, client.embeddings.create, model=model, input="a")
    _refused(anthropic.NotFoundError, other.messages.create, model="no-such", messages=messages, max_tokens=1)
    return "; ".join(said)


def held(client: openai.OpenAI, other: anthropic.Anthropic, model: str) -> str:
    """Answers of a schema, in each protocol's words."""
    messages = [{"role": "user", "content": QUESTION}]
    wanted = {"name": "bird", "schema": BIRD, "strict": True}
    chat = client.chat.completions.create(
        model=model, messages=messages, response_format={"type": "json_schema", "json_schema": wanted}
    )
    answer = client.responses.create(
        model=model, input=QUESTION, text={"format": {"type": "json_schema", **wanted}}
    )
    form = {"type": "json_schema", "schema": BIRD}
    said = other.messages.create(
        model=model, messages=messages, max_tokens=64, extra_body={"output_config": {"format": form}}
    )
    texts = (chat.choices[0].message.content, answer.output_text, said.content[0].text)
    assert all(json.loads(text)["bird"] in ("tern", "gull") for text in texts), texts
    return " ".join(texts)


def logprobs(client: openai.OpenAI, model: str) -> str:
    """Of chats and of responses, whole and streamed: the same tokens."""
    options = {"model": model, "temperature": 0, "top_logprobs": 2}
    messages = [{"role": "user", "content": QUESTION}]
    chat = client.chat.completions.create(messages=messages, max_tokens=8, logprobs=True, **options)
    told = [(one.token, len(one.top_logprobs)) for one in chat.choices[0].logprobs.content]
    asked = {"input": QUESTION, "max_output_tokens": 8, "include": ["message.output_text.logprobs"]}
    whole = client.responses.create(**asked, **options).output[-1].content[0].logprobs
    events = client.responses.create(**asked, **options, stream=True)
    deltas = [one for event in events if event.type == "response.output_text.delta" for one in event.logprobs]
    assert told == [(one.token, len(one.top_logprobs)) for one in whole]
    assert [token for token, _ in told] == [one.token for one in deltas] and {2} == {top for _, top in told}
    return f"{len(told)} tokens"


def tools(client: openai.OpenAI, model: str) -> str:
    """A model that has never been taught tools refuses them; another is given them."""
    call = {"model": model, "messages": [{"role": "user", "content": "Weather in Paris?"}], "max_tokens": 64}
    try:
        answer = client.chat.completions.create(**call, tools=[{"type": "function", "function": TOOL}])
    except openai.BadRequestError as error:
        assert "tools" in str(error)
        return "refused"
    return str(answer.choices[0].message.tool_calls or answer.choices[0].message.content)


def _refused(kind: type[Exception], create: Callable[..., object], **options: object) -> str:
    try:
        create(**options)
    except kind as error:
        return error.body["message"] if hasattr(error, "body") and "message" in error.body else str(error)
    raise AssertionError(f"{options} was served")


def main() -> None:
    address = sys.argv[1].rstrip("/")
    theirs = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    other = anthropic.Anthropic(base_url=address, api_key="none", max_retries=0)
    model = sys.argv[2] if len(sys.argv) > 2 else theirs.models.list().data[0].id
    assert model in [one.id for one in other.models.list().data]
    print("chat:       ", repr(chat(theirs, model)))
    print("completion: ", repr(completion(theirs, model)))
    print("responses:  ", repr(response(theirs, model)))
    print("messages:   ", repr(message(other, model)))
    print("held:       ", held(theirs, other, model))
    print("logprobs:   ", logprobs(theirs, model))
    print("refusals:   ", refusals(theirs, other, model))
    print("tools:      ", tools(theirs, model))


if __name__ == "__main__":
    main()
