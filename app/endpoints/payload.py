"""A chat as the body of a request. What nobody has chosen is the server's to choose, so it is not in it."""

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from app.models.backends.port import ChatRequest
from app.models.backends.tool_texts import without_tools
from app.settings.servers.endpoints import Endpoint
from app.tools.calls import arguments_text
from engine import Thinking, ThinkingSupport

if TYPE_CHECKING:
    from engine import Message


class _Support(ThinkingSupport):
    def lacks(self, wanted: Thinking) -> str | None:
        """Say that no server is told of a budget."""
        return "takes no budget of tokens for thoughts" if wanted.budget is not None else None


SUPPORT = _Support(can_switch=True, efforts=("low", "medium", "high"))
"""What can be asked of a server; whether its model understands it, only the model knows."""
_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "seed",
)


def body_of(endpoint: Endpoint, model: str, request: ChatRequest) -> dict[str, Any]:
    """Return the body. Token ids mean nothing to a server that is not the engine: biases stay out of it."""
    told = request.messages if request.tools else without_tools(request.messages)
    messages = [_message(one) for one in told]
    body: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.max_tokens is not None:
        body[_limit_name(endpoint)] = request.max_tokens
    if request.stop:
        body["stop"] = list(request.stop)
    for name in _SAMPLING:
        value = getattr(request.sampling, name)
        if name in request.chosen and value is not None:
            body[name] = value
    if request.tools:
        body["tools"] = list(request.tools)
    body |= _thinking(SUPPORT.fitted(request.thinking).level)
    if request.beginning.text:
        messages.append({"role": "assistant", "content": request.beginning.text})
        body |= {"add_generation_prompt": False, "continue_final_message": True}
    return body


def _message(message: "Message") -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "tool":
        found["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        found["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": arguments_text(call)},
            }
            for call in message.tool_calls
        ]
    return found


def _limit_name(endpoint: Endpoint) -> str:
    """OpenAI's own models know the new name alone, many other servers the old one alone."""
    host = urlsplit(endpoint.url).hostname or ""
    return "max_completion_tokens" if host.endswith("openai.com") else "max_tokens"


def _thinking(level: str) -> dict[str, Any]:
    if level in SUPPORT.efforts:
        return {"reasoning_effort": level}
    if level in ("on", "off"):
        return {"chat_template_kwargs": {"enable_thinking": level == "on"}}
    return {}
