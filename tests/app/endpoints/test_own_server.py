"""This program's own server behind a tab of its own: what one says the other understands."""

import asyncio

import httpx
import pytest

from app.endpoints.client import EndpointClient
from app.endpoints.service import Endpoints
from app.models.backends.port import ChatRequest
from app.models.endpoint_keys import endpoint_key
from app.serve.program import ServeOptions, make_application
from app.serve.requests.served import Served, ServedModels
from app.settings.servers.endpoints import Endpoint
from engine import Engine, FinishReason, Message, SamplingParams
from tests.app.endpoints.scripted import joined


@pytest.fixture(scope="module")
def engine():
    with Engine("cpu", debug=True) as engine:
        yield engine


def test_an_answer_comes_as_the_engine_wrote_it(engine, small_model):
    served = Served(engine.load(small_model), "small", frozenset(), SamplingParams(temperature=0.0))
    application = make_application(
        ServedModels(lambda: [served]), engine.stats, ServeOptions(), lambda _: None
    )
    endpoint = Endpoint("own", "http://127.0.0.1/v1")
    endpoints = Endpoints(
        {"own": endpoint}, lambda one: EndpointClient(one, httpx.ASGITransport(application)), asyncio.sleep
    )
    try:
        model = endpoints.opened(endpoint_key("own", "small"))
        assert model.context_length == served.model.max_tokens
        asked = ChatRequest(
            [Message("user", "hello")], {}, SamplingParams(temperature=0.0), 8, {"temperature"}
        )
        text, finished = joined(model.chat(asked).generation.events())
        prompt = served.model.template.prompt(asked.messages)
        assert finished.prompt_tokens == len(prompt.ids) and 1 <= finished.completion_tokens <= 8
        assert finished.reason in (FinishReason.STOP, FinishReason.LENGTH) and text.strip()
    finally:
        endpoints.close()
