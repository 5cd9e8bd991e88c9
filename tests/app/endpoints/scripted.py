"""A server on a real socket that says what a test has written down, byte by byte, and hears who goes."""

import json
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from app.settings.servers.endpoints import Endpoint

WAIT = 30.0
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


@dataclass
class Asked:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: dict


Script = Callable[[socket.socket], None]


@dataclass
class ScriptedServer:
    """Answers chats one script after the other, and lists what `models` says."""

    models: list[dict] = field(default_factory=lambda: [{"id": "tern-7b", "max_model_len": 4096}])
    scripts: list[Script] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    gone: "queue.Queue[bool]" = field(default_factory=queue.Queue)

    def __post_init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/v1"
        threading.Thread(target=self._serve, daemon=True).start()

    def endpoint(self, name: str = "cluster", **more) -> Endpoint:
        return Endpoint(name, self.url, **more)

    def close(self) -> None:
        # A thread that waits for a connection does not hear of `close` alone.
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def says(self, *parts: bytes) -> None:
        """The next chat is answered with these bytes, then the connection is closed."""
        self.scripts.append(lambda connection: connection.sendall(b"".join(parts)))

    def answers(self, *texts: str, **usage: int) -> None:
        """The next chat is answered whole."""
        events = [event(delta={"content": text}) for text in texts]
        events.append(event(delta={}, finish_reason="stop"))
        if usage:
            events.append(chunk(choices=[], usage=usage))
        self.says(HEAD, *events, b"data: [DONE]\n\n")

    def hangs(self, *texts: str) -> None:
        """The next chat is begun and not ended; `gone` hears when the reader goes."""

        def script(connection: socket.socket) -> None:
            connection.sendall(HEAD + b"".join(event(delta={"content": text}) for text in texts))
            self.gone.put(connection.recv(1) == b"")

        self.scripts.append(script)

    def refuses(self, status: int, message: str = "", **headers: str) -> None:
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        body = json.dumps({"error": {"message": message}}) if message else ""
        # A client that took the connection for kept would meet its end in the next request.
        lines += f"content-length: {len(body)}\r\nconnection: close\r\n"
        self.says(f"HTTP/1.1 {status} No\r\n{lines}\r\n{body}".encode())

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(WAIT)
            asked = _read(connection)
            self.asked.append(asked)
            if asked.path.endswith("/models"):
                body = json.dumps({"object": "list", "data": self.models})
                connection.sendall(
                    f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n"
                    f"content-type: application/json\r\nconnection: close\r\n\r\n{body}".encode()
                )
            elif self.scripts:
                self.scripts.pop(0)(connection)


def chunk(**fields) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()


def event(**choice) -> bytes:
    return chunk(choices=[{"index": 0, **choice}])


def _read(connection: socket.socket) -> Asked:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += connection.recv(65536)
    return Asked(first.split()[1], headers, json.loads(body) if body else {})


def joined(events: Iterator) -> tuple[str, object]:
    """The text of an answer that is read to its end, and its last event."""
    *deltas, last = list(events)
    return "".join(delta.text or delta.marker for delta in deltas), last
