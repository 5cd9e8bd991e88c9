"""A server over an engine whose every word a test decides."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from app.serve.http.limits import Access, HttpLimits
from app.serve.log_row import Row
from app.serve.metrics import Metrics
from app.serve.requests.desk import Desk
from app.serve.requests.served import Served, ServedModels
from app.serve.routes import Routes
from engine.api.answer_format import THINK, AnswerFormat
from engine.api.errors import TemplateError
from engine.api.request import FinishReason, SamplingParams
from engine.api.thinking import ThinkingSupport
from engine.api.tool_format import ToolFormat
from engine.templates.turns import Message, Prompt
from tests.support.fakes import ENDING, FakeEngine, FakeGeneration, FakeModel

PATH = Path("/home/somebody/models/scripted.gguf")
USUAL = SamplingParams(temperature=0.6, top_k=20)


class Template:
    """One token a word; keeps what it was asked to encode."""

    def __init__(self) -> None:
        self.tool_format: ToolFormat | None = None
        self.answer_format: AnswerFormat = THINK
        self.opened = False
        self.failure: str | None = None
        self.thinking_support = ThinkingSupport(can_switch=True)
        self.ending = ENDING
        self.asked: list[tuple[Sequence[Message], dict[str, Any]]] = []

    def prompt(self, messages: Sequence[Message], **options: Any) -> Prompt:
        if self.failure is not None:
            raise TemplateError(self.failure)
        self.asked.append((messages, options))
        words = sum(len(message.content.split()) + 1 for message in messages)
        return Prompt(list(range(1, words + 1)), self.opened, None, self.answer_format, self.ending)


class Tokenizer:
    """One token a letter."""

    bos_id, add_bos, vocab_size = 1, True, 256

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return list(text.encode("utf-8", "replace"))

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id % 256])

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        return bytes(ids).decode("utf-8", "replace")


class ScriptedServer:
    """An application, its engine and what it logged."""

    def __init__(
        self,
        *,
        most_requests: int = 8,
        context_length: int = 2048,
        limits: HttpLimits | None = None,
        access: Access | None = None,
    ) -> None:
        self.engine = FakeEngine(context_length)
        self.model: FakeModel = self.engine.load(PATH)
        self.template = Template()
        self.model.template, self.model.tokenizer = self.template, Tokenizer()  # type: ignore[assignment]
        self.rows: list[Row] = []
        served = Served(self.model, "scripted", frozenset({"other-name"}), USUAL)  # type: ignore[arg-type]
        metrics = Metrics(self.engine.stats)
        self.desk = Desk(ServedModels(lambda: [served]), metrics, self.rows.append, most_requests)
        self.application = Routes(self.desk, limits or HttpLimits(), access or Access()).application()

    def client(self, **options: Any) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.application)
        return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080", **options)

    def answer(
        self,
        *words: str | tuple[str, str],
        reason: FinishReason = FinishReason.STOP,
        error: str | None = None,
    ) -> None:
        """Every request is answered so; a pair is a marker and its text."""

        def script(generation: FakeGeneration) -> None:
            for word in words:
                generation.feed(*((word,) if isinstance(word, str) else (word[1], word[0])))
            generation.finish(reason, error)

        self.engine.on_submit = script

    @property
    def generations(self) -> list[FakeGeneration]:
        return self.engine.generations

    async def post(self, path: str, body: object, **headers: str | bytes) -> httpx.Response:
        async with self.client() as client:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            return await client.post(path, content=content, headers=headers)

    async def get(self, path: str, **headers: str | bytes) -> httpx.Response:
        async with self.client() as client:
            return await client.get(path, headers=headers)


def said(text: str = "hello you", **more: Any) -> dict[str, Any]:
    """A chat's body."""
    return {"model": "scripted", "messages": [{"role": "user", "content": text}], **more}


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The data of server-sent events, but for the mark of their end."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def joined(chunks: Iterable[Mapping[str, Any]], pick: Callable[[Mapping[str, Any]], str | None]) -> str:
    return "".join(pick(chunk) or "" for chunk in chunks)
