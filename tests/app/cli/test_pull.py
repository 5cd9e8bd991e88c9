import io
import stat
import sys

import pytest

from app.cli import ask, program, pull_progress
from app.cli.pull_progress import ProgressLine
from app.fetch.fetch import Progress, State
from app.fetch.words import describe
from app.models.builtin import builtin_model_path
from app.settings.file import Settings
from app.transfer import download
from tests.app.computer import give_memory
from tests.support.file_server import Fault, File, FileServer
from tests.support.tiny_gguf import make_tiny

SMALL = {"layers": 1, "width": 64, "ffn": 64, "heads": 1, "kv_heads": 1}
OWN = """
[[model]]
name = "tiny"
title = "Tiny"
good_at = "tests"
licence = "Acme Terms"
licence_url = "https://acme.example/terms"
consent = true
architecture = "llama"
parameters = 100_000
memory_8k = "{memory}"
sources = ["{source}"]
"""


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TUI_CHAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "_WAITS", (0.0,))
    return tmp_path / "home"


@pytest.fixture
def models(home):
    return home / "data" / "models"


@pytest.fixture
def server(tmp_path):
    server = FileServer()
    body = make_tiny(tmp_path / "tiny.gguf", "llama", **SMALL).read_bytes()
    server.files["/tiny.gguf"] = File(body)
    server.files["/other.gguf"] = File(body)
    yield server
    server.close()


@pytest.fixture
def own(home, server):
    def write(memory="1 MB"):
        (home / "config").mkdir(parents=True, exist_ok=True)
        text = OWN.format(source=server.url("/tiny.gguf"), memory=memory)
        (home / "config" / "catalogue.toml").write_text(text)

    write()
    return write


def run(*arguments):
    return program.main(["pull", *arguments])


def test_what_was_fetched_is_all_of_stdout(capsys, server, models):
    assert run(server.url("/tiny.gguf"), server.url("/other.gguf")) == 0
    told = capsys.readouterr()
    assert told.out.splitlines() == [str(models / "tiny.gguf"), str(models / "other.gguf")]
    assert "licence not stated" in told.err
    assert "tui-chat: tiny is ready: tui-chat --model tiny" in told.err
    assert "\r" not in told.err and "\x1b" not in told.err
    assert run(server.url("/tiny.gguf")) == 0
    assert len(server.requests("/tiny.gguf")) == 1
    assert stat.S_IMODE(models.parent.stat().st_mode) == 0o700


def test_what_memory_cannot_hold_is_warned_of(capsys, monkeypatch, server):
    give_memory(monkeypatch, 1000)
    assert run(server.url("/tiny.gguf")) == 0
    assert "needs more than 321 kB of memory; 1 kB are free" in capsys.readouterr().err


def test_one_that_fails_does_not_stop_the_other(capsys, server, models):
    server.faults["/tiny.gguf"] = [Fault(cut=100), *3 * [Fault(cut=0)]]
    assert run(server.url("/tiny.gguf"), server.url("/other.gguf")) == 1
    told = capsys.readouterr()
    assert told.out.splitlines() == [str(models / "other.gguf")]
    assert "tui-chat: tiny: the connection to 127.0.0.1 was cut" in told.err


def test_a_model_that_cannot_be_opened_is_an_error(capsys, server, models):
    server.files["/tiny.gguf"].body = b"GGUF broken"
    assert run(server.url("/tiny.gguf")) == 1
    assert "tiny was fetched, but cannot be opened: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "said"), [((), 2, "say what to fetch"), (("nonsense",), 1, "--list")]
)
def test_what_cannot_be_fetched_is_one_line(capsys, arguments, code, said):
    assert run(*arguments) == code
    told = capsys.readouterr()
    assert told.out == "" and said in told.err and len(told.err.splitlines()) == 1


def test_a_licence_that_asks_is_agreed_to_first(capsys, monkeypatch, server, own, models):
    assert run("tiny") == 2
    assert "read https://acme.example/terms and add --yes" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", answer := Terminal("n\n"))
    assert run("tiny") == 1
    assert "was not agreed to" in capsys.readouterr().err
    assert server.requests("/tiny.gguf") == []
    monkeypatch.setattr(sys, "stdin", answer := Terminal("y\n"))
    assert run("tiny") == 0
    assert answer.read() == ""
    told = capsys.readouterr()
    assert "licence Acme Terms (https://acme.example/terms)" in told.err
    assert "Do you agree to the licence of Tiny? [y/N]" in told.err
    assert told.out == f"{models / 'tiny.gguf'}\n"


def test_yes_agrees(server, own, models):
    assert run("tiny", "--yes") == 0
    assert (models / "tiny.gguf").is_file()


def test_ctrl_c_keeps_the_part_and_says_how_to_go_on(capsys, monkeypatch, server, models):
    address = server.url("/tiny.gguf")
    server.faults["/tiny.gguf"] = [Fault(hold=1000) for _ in range(9)]

    class Interrupted(ProgressLine):
        def _show(self):
            if self._fetches[0].progress.done >= 1000:
                raise KeyboardInterrupt
            super()._show()

    monkeypatch.setattr(pull_progress, "ProgressLine", Interrupted)
    assert run(address) == 130
    said = capsys.readouterr().err
    assert "tiny is paused at " in said and f"go on with: tui-chat pull {address}" in said
    assert sorted(path.name for path in models.iterdir()) == ["tiny.gguf.part", "tiny.gguf.part.json"]
    assert run("--list") == 0
    assert "tiny.gguf.part is unfinished, " in capsys.readouterr().err


def test_the_list_says_what_fits_and_how_fast_it_will_be(capsys, own, monkeypatch):
    give_memory(monkeypatch, 8 * 10**9, bandwidth=16e9)
    assert run("--list") == 0
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert lines[0].split()[:2] == ["NAME", "PARAMETERS"]
    tiny = next(line for line in lines if line.startswith("tiny "))
    assert "yes" in tiny and "Acme Terms (asks)" in tiny
    known = next(line for line in lines if line.startswith("smollm2-135m "))
    assert known.split()[3:5] == ["98", "MB"] and "about 85 tok/s" in known
    assert "are free" in told.err
    own(memory="900 TB")
    run("--list")
    assert " no " in next(line for line in capsys.readouterr().out.splitlines() if line.startswith("tiny "))


def test_a_bad_catalogue_of_the_user_s_is_warned_of(capsys, home):
    (home / "config").mkdir(parents=True)
    (home / "config" / "catalogue.toml").write_text("[[model]]\nname = 3\n")
    assert run("--list") == 0
    assert "catalogue.toml: model 3: name must be text in quotes" in capsys.readouterr().err


def test_a_terminal_has_one_line_that_is_taken_away(monkeypatch, capsys, server):
    class Watched(Terminal):
        def write(self, text):
            if text.startswith("\r\x1b[Ktiny "):
                server.go_on.set()
            return super().write(text)

    server.faults["/tiny.gguf"] = [Fault(hold=1000)]
    monkeypatch.setattr(sys, "stderr", shown := Watched())
    assert run(server.url("/tiny.gguf")) == 0
    parts = shown.getvalue().split("\r\x1b[K")
    assert any(part.startswith("tiny ") and "\n" not in part for part in parts[1:-1])
    assert parts[-1].startswith("tui-chat: tiny is ready")


def test_moments_in_words():
    moment = Progress(State.RUNNING, 45 * 10**6, 90 * 10**6, 9e6, 65.0)
    assert describe(moment) == "50 %, 45 MB of 90 MB, 9 MB/s, 1 min 05 s left"
    assert describe(Progress(State.RUNNING, 10**6)) == "1 MB"
    assert describe(Progress(State.RUNNING, 0, 0)) == "100 %, 0 B of 0 B"
    waiting = Progress(State.RUNNING, 0, 10, waiting="x has been asked too often (429)")
    assert describe(waiting) == "0 %, 0 B of 10 B, waiting: x has been asked too often (429)"
    assert describe(Progress(State.RUNNING, 0, 1, 1.0, 7300.0)).endswith("2 h 01 min left")


@pytest.fixture
def mention(capsys):
    """What `ask` says on stderr after an answer of the built-in model, or of another."""
    arguments = program.build_parser(["ask"]).parse_args(["ask", "x"])

    def run(path=None):
        ask._mention_models(path or builtin_model_path(), arguments, Settings())
        return capsys.readouterr().err

    return run


def test_ask_mentions_models_once_and_never_again(mention, home):
    assert mention(home / "other.gguf") == ""
    assert mention().count("tui-chat pull --list") == 1
    assert mention() == ""


def test_ask_mentions_no_models_to_who_has_some(mention, home, models):
    models.mkdir(parents=True)
    make_tiny(models / "x.gguf", "llama", **SMALL)
    assert mention() == ""
    assert not (home / "state").exists()


def test_what_cannot_be_remembered_is_not_mentioned(mention, home):
    home.mkdir()
    (home / "state").write_text("in the way")
    assert mention() == ""
