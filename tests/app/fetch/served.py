"""What tests of fetches share: the served file's name, and waiting for a moment."""

import hashlib
import time

from tests.app.fetch.conftest import WAIT

PATH = "/tiny-q8_0.gguf"
NAME = "tiny-q8_0.gguf"


def url(server, sha256=None):
    return server.url(PATH) + (f"#sha256={sha256}" if sha256 else "")


def digest(data):
    return hashlib.sha256(data).hexdigest()


def names(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file()) if folder.exists() else []


def until(fetch, happened):
    """Wait until `happened` is true of the fetch's progress."""
    given_up = time.monotonic() + WAIT
    while not happened(fetch.progress):
        assert time.monotonic() < given_up
        time.sleep(0.001)
