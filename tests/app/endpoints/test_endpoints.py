"""A remote model against a scripted server: what is sent, what is read, and every fault in one clear line."""

import asyncio
import json
import os
import socket
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from app.chat.conversation import Conversation
from app.chat.reasoning import splitter_for
from app.endpoints.answer import FORMAT, AnswerReader
from app.endpoints.errors import EndpointError
from app.endpoints.events import MOST_LINE, EventReader, EventTooLongError
from app.endpoints.listed import listed_models
from app.endpoints.service import Endpoints
from app.models.backends.port import Beginning, ChatRequest
from app.models.endpoint_keys import endpoint_key
from app.settings.servers.endpoints import Endpoint
from engine import FinishReason, Message, RequestError, SamplingParams, Thinking
from tests.app.endpoints.scripted import HEAD, WAIT, chunk, event, joined

WORDS = (
    *("choices", "delta", "content", "reasoning", "finish_reason", "usage", "prompt_tokens", "error"),
    *("timings", "predicted_per_second", "completion_tokens", "message", "id", "meta", "n_ctx"),
)
QUESTION = (Message("system", "Be brief."), Message("user", "What is a tern?"))


def request(**more) -> ChatRequest:
    fields = {
        "messages": QUESTION,
        "kept": {},
        "sampling": SamplingParams(),
        "max_tokens": None,
        "chosen": (),
    }
    return ChatRequest(**(fields | more))


def ask(model, **more):
    return joined(model.chat(request(**more)).generation.events())


def test_a_chat_is_sent_and_its_answer_is_read_with_its_cost(server, opened):
    server.answers("A sea", " bird.", prompt_tokens=12, completion_tokens=3)
    model = opened()
    text, finished = ask(model)
    assert (text, finished.reason, model.context_length) == ("A sea bird.", FinishReason.STOP, 4096)
    assert (finished.prompt_tokens, finished.completion_tokens) == (12, 3) and finished.ttft_ms > 0
    body = server.asked[-1].body
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is a tern?"},
    ]
    # What nobody chose is the server's to choose.
    assert body.keys() == {"model", "messages", "stream", "stream_options"}


def test_what_was_chosen_is_sent_under_the_names_that_servers_know(server, opened):
    server.answers("a")
    sampling = SamplingParams(temperature=0.0, min_p=0.1, top_k=5, seed=7, logit_bias={3: 1.0})
    chosen = {"temperature", "min_p", "top_k", "seed", "logit_bias"}
    ask(opened(), sampling=sampling, chosen=chosen, max_tokens=9, thinking=Thinking("high", 50))
    body = server.asked[-1].body
    assert {name: body[name] for name in ("temperature", "min_p", "top_k", "seed", "max_tokens")} == {
        "temperature": 0.0,
        "min_p": 0.1,
        "top_k": 5,
        "seed": 7,
        "max_tokens": 9,
    }
    assert body["reasoning_effort"] == "high" and "logit_bias" not in body


def test_a_budget_of_thoughts_is_said_to_change_nothing(server, opened):
    model = opened()
    for wanted, said in (("high 50", "takes no budget of tokens for thoughts"), ("off", None)):
        server.answers("a")
        asked = model.chat(request(thinking=Thinking.parse(wanted)))
        assert asked.lacks == said and joined(asked.generation.events())[0] == "a"
    assert server.asked[-1].body["chat_template_kwargs"] == {"enable_thinking": False}


def pieces(deltas) -> list[tuple[str, str]]:
    chat = Conversation()
    node = chat.begin_answer("m", splitter_for(FORMAT))
    chat.stream(node.id, deltas)
    chat.finish(node.id)
    return [node.reasoning, node.text]


@pytest.mark.parametrize(
    "deltas",
    [
        [{"reasoning_content": "hm"}, {"reasoning_content": "m"}, {"content": "Yes"}],
        [{"reasoning": "hm"}, {"reasoning": "m", "content": ""}, {"content": "Yes"}],
        [{"content": "<thi"}, {"content": "nk>hmm</th"}, {"content": "ink>\n\nYes"}],
        [{"role": "assistant", "content": None}, {"reasoning_content": "hmm", "content": "Yes"}],
    ],
)
def test_thoughts_are_told_from_the_answer_wherever_a_server_puts_them(server, opened, deltas):
    server.says(HEAD, *[event(delta=delta) for delta in deltas], event(delta={}, finish_reason="stop"))
    *found, _ = opened().chat(request()).generation.events()
    assert pieces(found) == ["hmm", "Yes"]


def test_the_servers_own_figures_come_first(server, opened):
    timings = {"prompt_n": 4, "cache_n": 8, "predicted_n": 6, "predicted_per_second": 41.5}
    server.says(
        HEAD, event(delta={"content": "a"}, finish_reason="length"), chunk(choices=[], timings=timings)
    )
    _, finished = ask(opened())
    assert (finished.tok_s, finished.prompt_tokens, finished.cached_tokens) == (41.5, 12, 8)
    assert (finished.completion_tokens, finished.reason) == (6, FinishReason.LENGTH)


def test_what_a_server_does_not_count_stays_unknown(server, opened):
    server.models = [{"id": "tern-7b"}]
    server.answers("a", "b")
    model = opened()
    _, finished = ask(model)
    assert (finished.completion_tokens, finished.prompt_tokens, finished.tok_s) == (0, 0, 0.0)
    assert model.context_length is None and model.counter is None


@pytest.mark.parametrize(
    ("fields", "context"),
    [
        ({"max_model_len": 9}, 9),
        ({"meta": {"n_ctx_train": 8}}, 8),
        ({"meta": {"n_ctx_train": 8, "n_ctx": 4}}, 4),
        ({"context_length": 7}, 7),
        ({"context_length": "7"}, None),
        ({"meta": None, "context_length": -1}, None),
    ],
)
def test_the_context_length_is_read_where_servers_say_it(server, opened, fields, context):
    server.models = [{"id": "other"}, {"id": "tern-7b", **fields}]
    assert opened().context_length == context


def test_a_cancel_closes_the_connection(server, opened):
    server.hangs("A sea")
    generation = opened().chat(request()).generation
    events = generation.events()
    assert next(events).text == "A sea"
    generation.cancel()
    assert joined(events)[1].reason is FinishReason.CANCELLED
    assert server.gone.get(timeout=WAIT)


def test_a_cancel_before_the_first_step_still_ends_it(server, opened):
    server.hangs()
    generation = opened().chat(request()).generation
    generation.cancel()
    assert joined(generation.events())[1].reason is FinishReason.CANCELLED


def test_a_lost_connection_keeps_the_text_and_is_not_asked_again(server, opened, waited):
    server.says(HEAD, event(delta={"content": "A sea"}))
    text, finished = ask(opened())
    assert (text, finished.error) == ("A sea", "the connection to cluster was lost") and not waited


def test_before_the_first_token_it_is_asked_again_as_the_server_says(server, opened, waited):
    server.refuses(429, "slow down", retry_after="7")
    server.refuses(503)
    server.says(b"")
    server.answers("A bird.")
    assert ask(opened())[0] == "A bird."
    assert waited == [7.0, 1.0, 2.0]


def test_a_long_wait_is_told_and_not_waited(server, opened, waited):
    server.refuses(429, "quota", retry_after="3600")
    assert ask(opened())[1].error == "cluster has been asked too often (429): quota" and not waited


def test_a_server_that_is_not_there_is_named_with_its_address(server, opened, waited):
    model = opened()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    endpoints = Endpoints({"gone": Endpoint("gone", f"http://127.0.0.1:{port}/v1")})
    listing = endpoints.listing(endpoints.known["gone"])
    assert listing.problem == f"gone does not answer at http://127.0.0.1:{port}/v1: is the server running?"
    # A model that was open before opens all the same: the server may come back.
    assert endpoints.opened(endpoint_key("gone", "m")).context_length is None
    endpoints.close()
    server.close()
    _, finished = ask(model)
    assert "is the server running?" in finished.error and waited == [0.5, 1.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("status", "message", "said"),
    [
        (401, "bad key", "cluster refuses the key of the environment variable TERN_KEY (401): bad key"),
        (403, "", "cluster refuses the key of the environment variable TERN_KEY (403)"),
        (404, "no such model", "cluster has no model tern-7b (404): no such model; choose another one"),
        (400, "Unrecognized request argument: min_p", "(400): Unrecognized request argument: min_p"),
    ],
)
def test_a_refusal_is_one_line_that_says_what_to_do(server, opened, monkeypatch, status, message, said):
    monkeypatch.setenv("TERN_KEY", "sk-secret")
    server.refuses(status, message)
    _, finished = ask(opened(api_key_env="TERN_KEY"))
    assert said in finished.error and "\n" not in finished.error
    assert server.asked[-1].headers["authorization"] == "Bearer sk-secret"


def test_a_key_is_in_no_message_and_one_that_lacks_is_named(server, opened, monkeypatch, caplog):
    caplog.set_level("DEBUG")
    monkeypatch.setenv("TERN_KEY", "sk-secret")
    server.refuses(400, "you sent sk-secret")
    _, finished = ask(opened(api_key_env="TERN_KEY"))
    assert "you sent …" in finished.error and "sk-secret" not in caplog.text
    monkeypatch.delenv("TERN_KEY")
    assert ask(opened(api_key_env="TERN_KEY"))[1].error == (
        "cluster needs a key: the environment variable TERN_KEY is not set"
    )


class Ring:
    """Stands in for the package `keyring`."""

    def __init__(self) -> None:
        self.keys = {("tui-chat", "me"): "sk-secret"}
        self.asked = 0

    def get_password(self, service: str, user: str) -> str | None:
        self.asked += 1
        return self.keys.get((service, user))


@pytest.fixture
def ring(monkeypatch):
    ring = Ring()
    monkeypatch.setitem(sys.modules, "keyring", ring)
    return ring


def test_a_key_of_the_keyring_is_read_once_and_again_when_it_was_refused(server, opened, ring, caplog):
    caplog.set_level("DEBUG")
    model = opened(api_key_keyring="tui-chat/me")
    server.refuses(400, "you sent sk-secret")
    assert "you sent …" in ask(model)[1].error
    assert server.asked[-1].headers["authorization"] == "Bearer sk-secret" and ring.asked == 1
    server.refuses(401, "")
    assert "refuses the key tui-chat/me of the system's keyring (401)" in ask(model)[1].error
    ring.keys["tui-chat", "me"] = "sk-other"
    ask(model)
    assert server.asked[-1].headers["authorization"] == "Bearer sk-other" and ring.asked == 2
    assert "sk-secret" not in caplog.text and "sk-other" not in caplog.text


def test_a_keyring_without_the_key_or_that_fails_is_told_with_the_field(opened, ring, monkeypatch):
    ring.keys.clear()
    model = opened(api_key_keyring="tui-chat/me")
    field = "endpoints.cluster.api_key_keyring"
    assert ask(model)[1].error == (
        f"{field}: the system's keyring has no key tui-chat/me; run: keyring set tui-chat me"
    )

    def locked(_service, _user):
        raise RuntimeError("it is\nlocked")

    ring.get_password = locked
    assert ask(model)[1].error == f"{field}: the system's keyring cannot be read: it is locked"
    monkeypatch.setitem(sys.modules, "keyring", None)
    said = f"{field} needs the package keyring; run: pip install 'tui-chat[keyring]'"
    assert ask(model)[1].error == said


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([HEAD, b"data: {not json\n\n"], "sent what is no event of an answer"),
        ([HEAD, b"data: [1]\n\n"], "sent what is no event of an answer"),
        ([HEAD, b"data: " + b"[" * 50_000 + b"\n\n"], "sent what is no event of an answer"),
        ([HEAD, chunk(error={"message": "no\x1b[2J memory"})], "ended the answer: no [2J memory"),
        ([HEAD, event(delta={}, finish_reason="content_filter")], "its filter of contents"),
        ([HEAD, b"data: " + b"x" * (MOST_LINE + 10)], "without an end"),
        ([b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n<p>"], "answers with text/html, and not with"),
        (
            [b"HTTP/1.1 302 Found\r\nlocation: http://elsewhere/v1\r\n\r\n"],
            "redirects to http://elsewhere/v1;",
        ),
    ],
)
def test_what_is_no_answer_is_said(server, opened, parts, said):
    server.says(*parts)
    _, finished = ask(opened())
    assert finished.reason is FinishReason.ERROR and said in finished.error


def test_events_are_read_from_any_pieces_and_comments_are_passed_over():
    stream = b": PROCESSING\n\nevent: message\r\ndata: one\r\n\r\ndata:two\ndata: lines\nid: 4\n\ndata: last"
    reader, found = EventReader(), []
    for at in range(len(stream)):
        found += reader.feed(stream[at : at + 1])
    assert [*found, *reader.end()] == ["one", "two\nlines", "last"]
    with pytest.raises(EventTooLongError):
        list(EventReader().feed((b"data: " + b"x" * 1000 + b"\n") * 5000))


def test_an_answer_goes_on_where_the_server_goes_on_with_it(server, opened):
    server.models = [{"id": "tern-7b", "owned_by": "vllm"}]
    server.answers(" bird.")
    assert ask(opened(), beginning=Beginning(text="A sea"))[0] == " bird."
    body = server.asked[-1].body
    assert body["messages"][-1] == {"role": "assistant", "content": "A sea"}
    assert body["continue_final_message"] and not body["add_generation_prompt"]
    server.models = [{"id": "tern-7b", "owned_by": "openai"}]
    with pytest.raises(RequestError, match="does not go on"):
        opened().chat(request(beginning=Beginning(text="A sea")))


def test_the_first_model_is_meant_where_none_is_named(server, opened):
    assert opened("").path == endpoint_key("cluster", "tern-7b")
    assert opened("", models=("mine",)).name == "mine"


def test_no_proxy_is_asked_for_a_server_of_this_computer(server, opened, monkeypatch):
    monkeypatch.setitem(os.environ, "HTTP_PROXY", "http://127.0.0.1:9")
    server.answers("a")
    assert ask(opened())[0] == "a"
    assert server.asked[-1].path == "/v1/chat/completions"


def test_slow_bytes_are_an_answer_like_any_other(server, opened):
    def slowly(connection):
        for byte in HEAD + event(delta={"content": "ä bird"}) + event(delta={}, finish_reason="stop"):
            connection.sendall(bytes([byte]))

    server.scripts.append(slowly)
    assert ask(opened())[0] == "ä bird"


def test_a_wait_for_another_try_is_told_and_ends_with_a_cancel(server):
    waits = threading.Event()

    async def sleep(_seconds):
        waits.set()
        await asyncio.Event().wait()

    endpoints = Endpoints({"cluster": server.endpoint()}, sleep=sleep)
    server.refuses(429, retry_after="7")
    generation = endpoints.opened(endpoint_key("cluster", "m")).chat(request()).generation
    assert waits.wait(WAIT) and generation.waits == "asks again in 7 s"
    generation.cancel()
    assert joined(generation.events())[1].reason is FinishReason.CANCELLED
    endpoints.close()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=12,
)


@hypothesis_settings(max_examples=100, deadline=None)
@given(st.lists(JSON, max_size=4))
def test_whatever_a_server_sends_is_an_answer_or_a_fault_in_one_line(events):
    reader, last = AnswerReader("cluster"), None
    try:
        for one in events:
            for delta in reader.take(json.dumps(one)):
                delta.text.encode()
        last = reader.finished()
    except EndpointError as error:
        last = reader.broken_off(str(error))
    assert "\n" not in (last.error or "") and last.tok_s < 1 << 40
    assert last.prompt_tokens >= last.cached_tokens >= 0
    listed_models({"data": events})
