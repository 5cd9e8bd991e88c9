"""A real server on a port: connections that go, that are slow, and its own end."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.serve.http.limits import HttpLimits
from app.serve.listening import listening_socket
from app.serve.program import ServeOptions, Server
from tests.app.serve.scripted import ScriptedServer, said

CHAT = "/v1/chat/completions"


@contextmanager
def running(scripted: ScriptedServer, limits: HttpLimits | None = None) -> Iterator[tuple[Server, int]]:
    """The server and its port, until the block ends."""
    with listening_socket("127.0.0.1", 0) as listening:
        listening.listen()
        server = Server(scripted.application, ServeOptions(limits=limits or HttpLimits()))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield server, listening.getsockname()[1]
        finally:
            server.end()
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture
def scripted():
    return ScriptedServer()


def begun(port: int, **more: object) -> http.client.HTTPConnection:
    """A connection on which a chat was asked for."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", CHAT, json.dumps(said(**more)), {"content-type": "application/json"})
    return connection


def watched(scripted: ScriptedServer) -> tuple[threading.Event, threading.Event]:
    """Set when an answer has begun, and when it was cancelled."""
    started, cancelled = threading.Event(), threading.Event()

    def watch(generation):
        cancel = generation.cancel

        def watched_cancel():
            cancel()
            cancelled.set()

        generation.cancel = watched_cancel
        generation.feed("Once")
        started.set()

    scripted.engine.on_submit = watch
    return started, cancelled


@pytest.mark.parametrize("stream", [True, False])
def test_who_goes_cancels_the_answer(scripted, stream):
    started, cancelled = watched(scripted)
    with running(scripted) as (_, port):
        connection = begun(port, stream=stream)
        assert started.wait(60)
        if stream:
            response = connection.getresponse()
            while b"Once" not in response.readline():
                pass
            response.close()
        connection.close()
        assert cancelled.wait(60)
    assert scripted.desk.taken == 0 and scripted.rows[0].ending == "cancelled"


def test_the_servers_end_ends_answers(scripted, monkeypatch):
    monkeypatch.setattr("app.serve.program._END_SECONDS", 0)
    started, cancelled = watched(scripted)
    with running(scripted) as (_, port):
        connection = begun(port, stream=True)
        assert started.wait(60)
    assert cancelled.is_set() and scripted.desk.taken == 0
    connection.close()


def test_headers_that_do_not_come_end_the_connection(scripted):
    scripted.answer("ok")
    with (
        running(scripted, HttpLimits(header_seconds=0.02)) as (_, port),
        socket.create_connection(("127.0.0.1", port), 60) as slow,
    ):
        slow.sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nx-slow: ")
        assert slow.recv(100) == b""


def test_headers_without_end_are_refused(scripted):
    with running(scripted) as (_, port), socket.create_connection(("127.0.0.1", port), 60) as endless:
        endless.sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nx-long: " + b"a" * 70_000)
        assert b"400" in endless.recv(100)


def test_one_connection_asks_again_and_again(scripted):
    scripted.answer("Good", " day.")
    with running(scripted) as (_, port):
        connection = begun(port)
        for _ in range(3):
            answer = json.loads(connection.getresponse().read())
            assert answer["choices"][0]["message"]["content"] == "Good day."
            connection.request("POST", CHAT, json.dumps(said()))
        connection.getresponse().read()
        connection.close()


def test_streams_of_one_connection_come_whole(scripted):
    scripted.answer(*"A tern flew.")
    with running(scripted) as (_, port):
        connection = begun(port, stream=True)
        for _ in range(2):
            lines = connection.getresponse().read().decode().split("\n\n")
            chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
            assert lines[-2:] == ["data: [DONE]", ""]
            assert (
                "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "A tern flew."
            )
            connection.request("POST", CHAT, json.dumps(said(stream=True)))
        connection.getresponse().read()
        connection.close()


def test_a_client_of_old_http_gets_a_stream_without_chunks(scripted):
    scripted.answer("Good", " day.")
    body = json.dumps(said(stream=True)).encode()
    with running(scripted) as (_, port), socket.create_connection(("127.0.0.1", port), 60) as client:
        head = b"POST %b HTTP/1.0\r\nhost: localhost\r\n" % CHAT.encode()
        client.sendall(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))
        head, _, sent = b"".join(iter(lambda: client.recv(1 << 16), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and sent.startswith(b"data: {")
    assert sent.endswith(b"\n\ndata: [DONE]\n\n") and b"\r\n" not in sent
