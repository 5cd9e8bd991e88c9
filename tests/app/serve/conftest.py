"""A scripted server for the tests of this room."""

import pytest

from tests.app.serve.scripted import ScriptedServer


@pytest.fixture
def server() -> ScriptedServer:
    scripted = ScriptedServer()
    scripted.answer("Good", " day", ".")
    return scripted
