"""A web server in the test's own process, told what to serve and how to fail."""

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

PROBE = "bytes=0-0"


@dataclass
class File:
    """What an address serves."""

    body: bytes = b""
    type: str = "application/octet-stream"
    etag: str | None = '"one"'
    ranges: bool = True
    sized: bool = True
    redirect: str | None = None


@dataclass
class Fault:
    """What one answer does instead: a status, fewer bytes (`cut`), other bytes, or bytes and then silence."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    hold: int | None = None
    corrupt: bool = False


class FileServer:
    """Serves `files` by path; each of a path's `faults` spoils one answer, but no question for a size."""

    def __init__(self) -> None:
        self.files: dict[str, File] = {}
        self.faults: dict[str, list[Fault]] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.go_on = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self._server.server_port}{path}"

    def requests(self, path: str) -> list[dict[str, str]]:
        """The headers of the requests for the contents of a path."""
        return [headers for asked, headers in self.asked if asked == path and headers.get("range") != PROBE]

    def close(self) -> None:
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()


def _handler(server: FileServer):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            path = urlsplit(self.path).path
            headers = {name.lower(): value for name, value in self.headers.items()}
            server.asked.append((path, headers))
            faults = server.faults.get(path, []) if headers.get("range") != PROBE else []
            _serve(self, server, server.files.get(path), headers, faults.pop(0) if faults else Fault())

        def log_message(self, *_):
            pass

    return Handler


def _serve(handler, server, file, headers, fault):
    if fault.status is not None or file is None:
        handler.send_response(fault.status or 404)
        for name, value in fault.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    if file.redirect is not None:
        handler.send_response(302)
        handler.send_header("Location", file.redirect)
        handler.end_headers()
        return
    start, end, status = _range(file, headers)
    handler.send_response(status)
    if status == 206:
        handler.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(file.body)}")
    if status == 416:
        handler.send_header("Content-Range", f"bytes */{len(file.body)}")
    if file.etag is not None:
        handler.send_header("ETag", file.etag)
    handler.send_header("Content-Type", file.type)
    if file.sized:
        handler.send_header("Content-Length", str(end - start))
    handler.end_headers()
    _send(handler, server, file.body[start:end], fault)


def _range(file, headers):
    """What is to be sent, and with which status."""
    asked = headers.get("range", "")
    stale = headers.get("if-range") not in (None, file.etag)
    if not asked.startswith("bytes=") or not file.ranges or stale:
        return 0, len(file.body), 200
    first, _, last = asked.removeprefix("bytes=").partition("-")
    if int(first) >= len(file.body):
        return 0, 0, 416
    return int(first), min(int(last) + 1, len(file.body)) if last else len(file.body), 206


def _send(handler, server, body, fault):
    if fault.corrupt:
        body = body[:-1] + bytes([body[-1] ^ 1])
    try:
        if fault.hold is not None:
            handler.wfile.write(body[: fault.hold])
            server.go_on.wait()
            body = body[fault.hold :]
        handler.wfile.write(body if fault.cut is None else body[: fault.cut])
    except OSError:
        return
