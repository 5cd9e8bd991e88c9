"""`tui-chat attach` finds who serves on this computer and opens the app there."""

import pytest

from app.cli import program
from app.serve.doors import noted
from app.serve.listening import address_of, listening_socket
from app.settings.paths import locations


@pytest.fixture
def opened(home, monkeypatch):
    """The endpoints that the app was opened with."""
    endpoints = []
    monkeypatch.setattr(program, "_start_app", lambda args: endpoints.append(args.chat_endpoint) or 0)
    monkeypatch.setattr(program, "_is_terminal", lambda _stream: True)
    return endpoints


def test_the_running_program_is_found(opened):
    with listening_socket("127.0.0.1", 0) as listening:
        listening.listen()
        with noted(locations().doors, address_of(listening)):
            assert program.main(["attach"]) == 0
        assert opened == [f"{address_of(listening)}/v1"]


def test_one_of_several_can_be_named(opened):
    assert program.main(["attach", "http://127.0.0.1:9/v1/"]) == 0
    assert program.main(["attach", "http://127.0.0.1:9"]) == 0
    assert opened == ["http://127.0.0.1:9/v1"] * 2


def test_where_nobody_serves_it_says_how_to_begin(opened, capsys):
    assert program.main(["attach"]) == 1
    assert "start one with tui-chat --serve" in capsys.readouterr().err
    assert opened == []
