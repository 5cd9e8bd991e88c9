"""`tui-chat ask` at an endpoint: no engine is made, and errors are one line."""

import json

import pytest

from app.cli import ask, program
from app.models.choice import resolve_model
from app.models.endpoint_keys import endpoint_key
from app.models.found import ModelSearch
from app.settings.paths import HOME_VARIABLE, locations


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    monkeypatch.setattr("sys.stdin", None)

    def no_engine(_settings):
        raise AssertionError("no engine is wanted")

    monkeypatch.setattr(ask, "make_engine", no_engine)

    def run_it(*arguments):
        code = program.main(["ask", *arguments])
        return code, *capsys.readouterr()

    return run_it


def test_a_question_goes_to_the_servers_first_model(run, server, monkeypatch):
    monkeypatch.setenv("TUI_CHAT_API_KEY", "sk-secret")
    server.answers("A bird.", prompt_tokens=9, completion_tokens=3)
    code, out, err = run("What is a tern?", "--endpoint", server.url, "--json", "-t", "0")
    found = json.loads(out)
    assert (code, err, found["text"], found["completion_tokens"]) == (0, "", "A bird.", 3)
    assert found["model"] == "tern-7b" and server.asked[-1].body["temperature"] == 0
    assert server.asked[-1].headers["authorization"] == "Bearer sk-secret"
    files = [path for path in locations().state.parent.rglob("*") if path.is_file()]
    assert not any(b"sk-secret" in path.read_bytes() for path in files)


def test_a_model_of_the_settings_is_named_by_its_endpoint(run, server):
    settings = locations().settings_file
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(f'[endpoints.cluster]\nurl = "{server.url}"\n')
    server.answers("A bird.")
    assert run("What is a tern?", "-m", "cluster/acme/gull") == (0, "A bird.\n", "")
    assert server.asked[-1].body["model"] == "acme/gull"


def test_what_goes_wrong_is_one_line(run, server):
    server.refuses(400, "max_tokens is too large")
    code, out, err = run("q", "--endpoint", server.url, "-m", "tern-7b")
    assert (code, out.strip(), err.count("\n")) == (1, "", 1) and "max_tokens is too large" in err
    code, _, err = run("q", "--endpoint", "localhost:80")
    assert (code, err.count("\n")) == (2, 1) and "--endpoint must be an address such as" in err


def test_a_command_that_needs_a_file_says_so(server, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    settings = locations().settings_file
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(f'[endpoints.cluster]\nurl = "{server.url}"\n')
    assert program.main(["bench", "-m", "cluster/tern-7b"]) == 1
    assert "tern-7b runs at an endpoint; name a model file with -m" in capsys.readouterr().err


def test_an_endpoint_alone_means_its_first_model(server):
    search = ModelSearch(endpoints={"cluster": server.endpoint()})
    assert resolve_model("cluster", search) == endpoint_key("cluster", "")
