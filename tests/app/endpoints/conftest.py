"""A scripted server and what asks it, for the tests of this room."""

import pytest

from app.endpoints.service import Endpoints
from app.models.endpoint_keys import endpoint_key
from tests.app.endpoints.scripted import ScriptedServer


@pytest.fixture
def server():
    scripted = ScriptedServer()
    yield scripted
    scripted.close()


@pytest.fixture
def waited():
    """The seconds that were waited between tries."""
    return []


@pytest.fixture
def opened(server, waited):
    """Opens a model of the scripted server; what waits between tries does not."""
    made = []

    async def sleep(seconds):
        waited.append(seconds)

    def open_it(model="tern-7b", **more):
        endpoints = Endpoints({"cluster": server.endpoint(**more)}, sleep=sleep)
        made.append(endpoints)
        return endpoints.opened(endpoint_key("cluster", model))

    yield open_it
    for endpoints in made:
        endpoints.close()
