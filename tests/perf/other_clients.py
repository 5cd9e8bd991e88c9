"""`litellm` and `llm` against a running server: whole and streamed, held to a schema, with tools.

    tui-chat serve -m MODEL &
    python -m tests.perf.other_clients http://127.0.0.1:8080 [MODEL]

Needs the packages `litellm` and `llm`, in an environment of their own: the server's is not needed. Tools are
asked for where the model takes them. Ends with an error at the first answer that is not as it should be.
"""

import json
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from llm.default_plugins.openai_models import Chat

litellm.suppress_debug_info = True

QUESTION = "Say hello in one short sentence."
SCHEMA = {
    "type": "object",
    "properties": {"bird": {"enum": ["tern", "gull"]}, "seen": {"type": "integer", "maximum": 99}},
    "required": ["bird", "seen"],
    "additionalProperties": False,
}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"name": "get_weather", "description": "The weather of a city", "parameters": PARAMETERS}


def asked(address: str, model: str, **more: Any) -> Any:
    """One answer through litellm."""
    return litellm.completion(
        model=f"openai/{model}",
        api_base=f"{address}/v1",
        api_key="none",
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=96,
        temperature=0,
        num_retries=0,
        **more,
    )


def with_litellm(address: str, model: str) -> str:
    whole = asked(address, model)
    text = whole.choices[0].message.content
    assert text and whole.usage.completion_tokens > 0
    chunks = list(asked(address, model, stream=True, stream_options={"include_usage": True}))
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert streamed == text, (streamed, text)
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    wanted = {"type": "json_schema", "json_schema": {"name": "bird", "schema": SCHEMA, "strict": True}}
    for stream in (False, True):
        bird = json.loads(_text(asked(address, model, response_format=wanted, stream=stream)))
        assert bird["bird"] in ("tern", "gull") and isinstance(bird["seen"], int)
    return text


def litellm_tools(address: str, model: str) -> str:
    tool = {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"}
    try:
        whole = asked(address, model, **tool)
    except litellm.BadRequestError as error:
        assert "tools" in str(error), error
        return "refused, since the model takes none"
    calls = [whole.choices[0].message.tool_calls[0].function]
    joined = litellm.stream_chunk_builder(list(asked(address, model, **tool, stream=True)))
    calls.append(joined.choices[0].message.tool_calls[0].function)
    for call in calls:
        assert call.name == "get_weather" and json.loads(call.arguments)["city"] in ("Paris", "Oslo"), call
    return str(calls[0].arguments)


def with_llm(address: str, model: str) -> str:
    """Its own class for servers like OpenAI's."""
    made = Chat(model, model_name=model, api_base=f"{address}/v1", supports_schema=True, supports_tools=True)
    options = {"temperature": 0, "max_tokens": 96, "key": "none"}
    whole = made.prompt(QUESTION, stream=False, **options)
    text = whole.text()
    pieces = list(made.prompt(QUESTION, stream=True, **options))
    assert text and "".join(pieces) == text, (pieces, text)
    assert whole.usage().output > 0
    for stream in (False, True):
        bird = json.loads(made.prompt(QUESTION, schema=SCHEMA, stream=stream, **options).text())
        assert bird["bird"] in ("tern", "gull")
    return f"{text!r} in {len(pieces)} pieces"


def _text(answer: Any) -> str:
    if hasattr(answer, "usage"):
        return str(answer.choices[0].message.content)
    return "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)


def main() -> None:
    address = sys.argv[1].rstrip("/")
    model = sys.argv[2] if len(sys.argv) > 2 else "builtin"
    print("litellm:       ", repr(with_litellm(address, model)))
    print("litellm, tools:", litellm_tools(address, model))
    print("llm:           ", with_llm(address, model))


if __name__ == "__main__":
    main()
