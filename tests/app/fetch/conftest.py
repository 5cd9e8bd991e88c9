"""A server, a small model to serve, and an environment in which nothing of this computer's counts."""

from pathlib import Path

import pytest

from app.fetch.fetch import Fetch
from app.fetch.sources import make_plan
from app.transfer import download
from tests.support.file_server import File, FileServer
from tests.support.tiny_gguf import make_tiny

WAIT = 60.0
"""Seconds after which a test has failed; nothing here takes a hundredth of them."""


@pytest.fixture(scope="session")
def model_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return make_tiny(
        tmp_path_factory.mktemp("tiny") / "tiny.gguf",
        "llama",
        layers=1,
        width=64,
        ffn=64,
        heads=1,
        kv_heads=1,
    ).read_bytes()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FileServer:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "_WAITS", (0.0, 0.0, 0.0))
    server = FileServer()
    yield server
    server.close()


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def fetched(models: Path):
    """Plan and fetch a word; returns the fetch, which is over."""

    def run(what: str, entries=(), **options) -> Fetch:
        fetch = Fetch(make_plan(what, entries, environment={}, **options), models)
        fetch.start()
        assert fetch.wait(WAIT)
        return fetch

    return run


@pytest.fixture
def served(server: FileServer, model_bytes: bytes) -> FileServer:
    """The server, with the model at `PATH`."""
    server.files["/tiny-q8_0.gguf"] = File(model_bytes)
    return server
