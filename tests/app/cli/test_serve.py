"""`tui-chat serve`: what it says before it serves, and one request from its start to its end."""

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.cli import program, serve
from app.serve import listening
from app.serve.listening import listening_socket
from app.serve.requests.naming import served_model
from app.settings.file import SamplingSettings

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TUI_CHAT_HOME", str(tmp_path))
    return tmp_path


def refused(capsys, *arguments):
    """The one line that the command ends with."""
    code = program.main(["serve", "-m", "builtin", *arguments])
    (line,) = capsys.readouterr().err.splitlines()
    return code, line.removeprefix("tui-chat: ")


@pytest.mark.parametrize("missing", ["starlette", "uvicorn", "prometheus_client"])
def test_a_missing_extra_is_one_line(capsys, monkeypatch, missing):
    monkeypatch.setattr(listening, "find_spec", lambda name: None if name == missing else object())
    code, line = refused(capsys)
    assert code == 1 and line == f"{missing} is not installed; run: pip install 'tui-chat[serve]'"


def test_other_hosts_need_a_key(capsys, monkeypatch):
    code, line = refused(capsys, "--host", "0.0.0.0")
    assert code == 2 and "--api-key-env" in line
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    code, line = refused(capsys, "--host", "0.0.0.0", "--api-key-env", "NO_SUCH_KEY")
    assert code == 2 and "NO_SUCH_KEY is not set" in line


def test_a_port_that_another_program_has(capsys):
    with listening_socket("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        code, line = refused(capsys, "--port", str(port))
    assert code == 1 and f"--port {port}" in line


def test_the_app_says_before_its_first_frame_that_a_port_is_taken(capsys, monkeypatch):
    monkeypatch.setattr(program, "_is_terminal", lambda _stream: True)
    with listening_socket("127.0.0.1", 0) as taken:
        taken.listen()
        port = str(taken.getsockname()[1])
        assert program.main(["--serve", port]) == 1
    assert f"--serve {port}: cannot be listened on" in capsys.readouterr().err
    monkeypatch.setattr(listening, "find_spec", lambda _name: None)
    assert program.main(["--serve"]) == 1
    assert "pip install 'tui-chat[serve]'" in capsys.readouterr().err


@pytest.mark.parametrize("option", [("--port", "70000"), ("--most-requests", "0"), ("--body-limit", "much")])
def test_wrong_options_are_named(capsys, option):
    with pytest.raises(SystemExit) as ended:
        program.main(["serve", *option])
    assert ended.value.code == 2 and option[0] in capsys.readouterr().err


def test_names_that_lists_show_are_served_names():
    (found,) = serve.find(serve.search_of(serve.read_settings(), serve.locations()))
    model = SimpleNamespace(path=found.path, name="engine's")
    for listed in (found, None):
        served = served_model(model, SamplingSettings(), listed, ["Mine"])
        assert served.id == "builtin" and served.aliases == ("Mine",)
        assert {"pocket-46m-q5_k_s", "pocket-46m-q5_k_s.gguf", "builtin", "engine's"} <= served.names
    other = served_model(SimpleNamespace(path=Path("/a/B.gguf"), name="B"), SamplingSettings())
    assert (other.id, other.names) == ("B", {"b", "b.gguf"})


def test_a_request_that_names_no_limit_gets_what_the_file_recommends_unless_the_settings_name_one():
    (found,) = serve.find(serve.search_of(serve.read_settings(), serve.locations()))
    model = SimpleNamespace(path=found.path, name="engine's")
    mine = SamplingSettings(max_tokens=50, chosen=frozenset({"max_tokens"}))
    unlimited = SamplingSettings(max_tokens=0, chosen=frozenset({"max_tokens"}))
    limits = [served_model(model, sampling).max_tokens for sampling in (SamplingSettings(), mine, unlimited)]
    assert limits == [200, 50, None]


def test_from_its_start_to_its_end(small_model):
    command = [sys.executable, "-m", "app", "serve", "-m", str(small_model), "--port", "0", "--alias", "Mine"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if "serving" in line)
            address = re.search(r"http://\S+", line)[0]
            body = {"model": "mine", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
            with urllib.request.urlopen(
                f"{address}/v1/chat/completions", json.dumps(body).encode(), timeout=120
            ) as response:
                answer = json.load(response)
            assert answer["model"] == "small" and answer["usage"]["completion_tokens"] <= 3
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == program.INTERRUPTED
            row = process.stderr.read()
            assert re.search(r"chat +small +prompt 11 .*out [1-3]", row) and "Traceback" not in row
        finally:
            process.kill()
    port = int(address.rpartition(":")[2])
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), 1)
