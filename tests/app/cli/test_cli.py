import io
import json
import os
import pty
import resource
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from app.cli import program
from app.cli.common import CommandError, say
from app.models.builtin import BUILTIN_FILE, builtin_model_path
from app.models.choice import ModelChoiceError, resolve_model
from app.models.fit.device import remember_rules
from app.models.found import OWN, FoundModel, ModelSearch, search_of
from app.screens.context import AppContext
from app.settings.file import EngineSettings, ModelSettings, Settings
from app.settings.paths import locations
from engine import summarize
from tests.app.computer import CPU
from tests.app.models.stores import Stores

ROOT = Path(__file__).parents[3]
HEAVY = {"torch", "textual", "numpy", "gguf", "tokenizers", "jinja2", "sqlite3", "asyncio", "huggingface_hub",
         "starlette", "uvicorn", "prometheus_client"}  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TUI_CHAT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def tui_chat(*arguments, text="", **options):
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        input=text.encode() if isinstance(text, str) else text,
        capture_output=True,
        cwd=ROOT,
        timeout=60,
        check=False,
        **options,
    )


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["ask", "--help"], ["--version"], ["where"], ["pull", "--help"], ["serve", "--help"]],
)
def test_light_commands_import_nothing_heavy(arguments):
    assert imported_by(arguments) == []


def test_a_list_of_models_to_fetch_needs_no_torch_once_the_device_is_known():
    remember_rules((CPU,), EngineSettings(), locations().cache)
    assert {"torch", "textual", "gguf", "huggingface_hub"}.isdisjoint(imported_by(["pull", "--list"]))


def imported_by(arguments):
    """Which of the heavy packages a command brings in."""
    code = (
        "import sys\nfrom app.cli.program import main\n"
        f"try:\n    main({arguments})\nexcept SystemExit: pass\n"
        f"print(*sorted({HEAVY} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, check=True)
    return done.stderr.decode().splitlines()[-1].split()


def test_the_first_frame_waits_for_nothing_that_only_messages_need():
    later = {"torch", "numpy", "jinja2", "markdown_it", "pygments.lexer", "app.transcript.view"}
    code = f"import sys, app.window.app\nprint(sorted({later} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, check=True)
    assert done.stdout.decode().strip() == "[]"


def test_help_answers_at_once():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = tui_chat("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0
    for word in [*program.COMMANDS, "exit codes", "130"]:
        assert word in done.stdout.decode()
    # Of the processor, not of the clock: what else runs must not decide.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime <= 0.4


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_said_on_stderr_steers_no_terminal(monkeypatch, terminal):
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys, "stderr", stream)
    say("there is no model named \x1b[2Jx\x07")
    assert ("\x1b" in stream.getvalue()) != terminal
    monkeypatch.setattr(sys, "stderr", None)
    say("nobody reads this")


def test_without_a_terminal_the_app_says_so(home):
    done = tui_chat()
    assert done.returncode == 2
    assert done.stdout == b""
    assert "no terminal" in done.stderr.decode()
    assert len(done.stderr.decode().splitlines()) == 1
    assert not home.exists()


def test_a_terminal_on_stdin_alone_is_not_enough():
    main_side, other_side = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "app"], stdin=other_side, capture_output=True, cwd=ROOT, check=False
        )
    finally:
        os.close(main_side)
        os.close(other_side)
    assert done.returncode == 2


def test_version(capsys):
    with pytest.raises(SystemExit) as end:
        program.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("tui-chat ")


@pytest.mark.parametrize("arguments", [["nonsense"], ["--nonsense"], ["tokenize"], ["ask", "--seed", "x"]])
def test_wrong_usage_is_2(arguments):
    assert tui_chat(*arguments).returncode == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--modle", "x"], "no option --modle; did you mean --model?"),
        (["-m", "x"], "no option -m; did you mean --model?"),
        (["--model", "m", "where", "--jsn"], "no option --jsn; did you mean --json?"),
        (["ask", "q", "--temprature=1"], "no option --temprature; did you mean --temperature?"),
        (["ask", "-t-1", "-s", "x", "-y", "q"], "no option -y"),
    ],
)
def test_an_unknown_option_is_named_with_what_may_be_meant(capsys, arguments, told):
    with pytest.raises(SystemExit) as end:
        program.main(arguments)
    assert end.value.code == 2
    assert capsys.readouterr().err.endswith(f"{told}\n")


@pytest.mark.parametrize(
    "arguments", [["- a list"], ["--", "--modle"], ["-5"], ["-"], ["-s", "- x", "-t", "-1"]]
)
def test_what_looks_like_an_option_but_is_none_is_read(arguments):
    assert program.build_parser(["ask"]).parse_args(["ask", *arguments]).command == "ask"


def test_where(capsys, home):
    assert program.main(["where", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"] == str(home / "config" / "settings.toml")
    assert Path(found["builtin_model"]).is_file()
    assert found["model_folders"] == [found["models"]]
    assert program.main(["where"]) == 0
    assert found["logs"] in capsys.readouterr().out
    assert not home.exists()


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (CommandError("no such thing", code=2), 2, "tui-chat: no such thing"),
        (FileNotFoundError(2, "No such file or directory", "/x"), 1, "tui-chat: /x: No such file"),
        (ModelChoiceError("which one"), 1, "tui-chat: which one"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 0, ""),
    ],
)
def test_every_error_is_one_line(monkeypatch, capsys, error, code, words):
    def fail(args):
        raise error

    monkeypatch.setattr(program, "_run", fail)
    monkeypatch.setattr(program, "_silence_stdout", lambda: None)
    assert program.main([]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(words)
    assert len(err.splitlines()) == (1 if words else 0)


def test_an_unexpected_error_is_logged(monkeypatch, capsys):
    def fail(args):
        raise ZeroDivisionError("one\ntwo")

    monkeypatch.setattr(program, "_run", fail)
    assert program.main([]) == 1
    err = capsys.readouterr().err
    assert err.splitlines() == [err.strip()]
    assert str(locations().log_file) in err
    assert "Traceback" not in err
    assert "Traceback" in locations().log_file.read_text()


@pytest.mark.parametrize("writable", [True, False])
def test_what_an_engine_logs_reaches_no_screen(home, writable):
    """By a process of its own: pytest has handlers that would keep Python's last resort from printing."""
    if not writable:
        home.mkdir(parents=True)
        locations().logs.touch()
    program = """
import logging, sys, warnings
from app.cli import program
from app.cli import ask

def run(args):
    warnings.warn("slow")
    try:
        1 / 0
    except ZeroDivisionError:
        logging.getLogger("engine").exception("compiling failed")
    return 0

ask.run = run
sys.exit(program.main(["ask", "hi"]))
"""
    options = {"capture_output": True, "cwd": ROOT, "timeout": 60, "check": False}
    done = subprocess.run([sys.executable, "-c", program], **options)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    if writable:
        logged = locations().log_file.read_text()
        assert "compiling failed" in logged and "ZeroDivisionError" in logged and "slow" in logged


def test_nothing_that_still_runs_holds_the_program_up():
    code = """
import threading, time
from concurrent.futures import ThreadPoolExecutor
from app.cli import program

def main():
    ThreadPoolExecutor(1).submit(time.sleep, 50)
    threading.Thread(target=time.sleep, args=(50,)).start()
    print("an answer")
    return 3

program.main = main
program.program()
"""
    options = {"capture_output": True, "cwd": ROOT, "timeout": 30, "check": False}
    done = subprocess.run([sys.executable, "-c", code], **options)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"an answer\n", b"")


def test_settings_warnings_go_to_stderr(home):
    places = locations()
    places.config.mkdir(parents=True)
    places.settings_file.write_text("[sampling]\ntop_q = 1\n")
    done = tui_chat("tokenize", "-m", "builtin", "--json", text="hi")
    assert done.returncode == 0
    assert json.loads(done.stdout)["ids"]
    assert "sampling.top_q" in done.stderr.decode()
    assert "top_p" in done.stderr.decode()


def test_models_are_chosen_by_path_name_or_beginning(tmp_path):
    folder = tmp_path / "models"
    (folder / "deep").mkdir(parents=True)
    names = ["alpha-q4.gguf", "alpha-q8.gguf", "deep/beta.GGUF", "big-00001-of-00002.gguf"]
    for name in [*names, "big-00002-of-00002.gguf", "notes.txt"]:
        (folder / name).touch()
    found = {name: folder / name for name in names}
    nowhere, there = ModelSearch(), ModelSearch((folder,))
    assert resolve_model("builtin", nowhere) == builtin_model_path()
    assert resolve_model(str(found[names[0]]), nowhere) == found[names[0]]
    assert resolve_model("alpha-q4", there) == found[names[0]]
    assert resolve_model("ALPHA-Q8.gguf", there) == found[names[1]]
    assert resolve_model("be", there) == found[names[2]]
    assert resolve_model("big", there) == found[names[3]]
    assert resolve_model("pocket", there).name == BUILTIN_FILE
    with pytest.raises(ModelChoiceError, match=r"several models: alpha-q4\.gguf, alpha-q8\.gguf"):
        resolve_model("alpha", there)
    with pytest.raises(ModelChoiceError, match=r"named 'gamma'.*alpha-q4\.gguf.*builtin"):
        resolve_model("gamma", there)
    with pytest.raises(ModelChoiceError, match="there is no model file"):
        resolve_model("./gamma.gguf", there)
    with pytest.raises(ModelChoiceError, match="is a folder"):
        resolve_model(str(folder), nowhere)


def test_a_model_is_chosen_by_the_name_that_the_list_shows(tmp_path, monkeypatch):
    found = {"qwen3-0.6b-q8.gguf": "Qwen3 0.6B", "q4.gguf": "Tern Base", "q8.gguf": "Tern Base"}
    files = [Path(tmp_path / file) for file in found]
    summaries = [replace(summarize(file), name=found[file.name]) for file in files]
    models = [FoundModel(one, OWN, OWN, (one.path.stem,), {}) for one in summaries]
    monkeypatch.setattr("app.models.choice.find", lambda search: models)
    there = ModelSearch((tmp_path,))
    assert resolve_model("Qwen3 0.6B", there) == files[0]
    assert resolve_model("qwen3 0", there) == files[0]
    assert resolve_model("Q8", there) == files[2]
    with pytest.raises(ModelChoiceError, match=r"several models: q4\.gguf, q8\.gguf; write more of the name"):
        resolve_model("tern base", there)
    with pytest.raises(ModelChoiceError, match=r"several models: qwen3-0\.6b-q8\.gguf, q4\.gguf, q8\.gguf"):
        resolve_model("q", there)


def test_the_default_model_of_the_settings_is_found_like_one_of_the_command_line(tmp_path):
    (tmp_path / "alpha-q4.gguf").touch()

    def default(name):
        settings = Settings(models=ModelSettings(folders=(str(tmp_path),), default=name))
        return AppContext(settings, locations(), *[mock.Mock()] * 5).default_model()

    assert default("builtin") == builtin_model_path()
    assert default("alpha") == default("alpha-q4") == tmp_path / "alpha-q4.gguf"
    assert default("gone.gguf") == Path("gone.gguf")


def test_model_folders_each_once(tmp_path):
    settings = Settings(models=ModelSettings(folders=("/b", "/a")))
    search = search_of(settings, locations(), ["/a"])
    assert search.folders == (Path("/a"), Path("/b"), locations().models)


def test_models_lists_the_builtin_and_broken_files(tmp_path):
    (tmp_path / "broken.gguf").write_bytes(b"GGUF nonsense")
    done = tui_chat("models", "--json", "--models-folder", str(tmp_path))
    models = json.loads(done.stdout)
    assert [model["builtin"] for model in models] == [True, False]
    assert models[0]["architecture"] == "qwen3"
    assert models[0]["context_length"] == 2048
    assert models[0]["supported"] is True
    assert models[1]["supported"] is False
    assert models[1]["problem"]
    table = tui_chat("models", "--models-folder", str(tmp_path)).stdout.decode()
    assert models[0]["name"] in table
    assert "broken.gguf" in table


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_the_name_of_a_file_does_not_steer_a_terminal(tmp_path, monkeypatch, capsys, arguments):
    name = "evil\x1b[2J\x9b1m\u202e.gguf"
    (tmp_path / name).write_bytes(b"GGUF nonsense")
    command = ["models", "--models-folder", str(tmp_path), *arguments]
    assert program.main(command) == 0
    piped = capsys.readouterr().out
    assert "\x9b1m\u202e.gguf" in piped and ("\x1b[2J" in piped or arguments)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert program.main(command) == 0
    shown = capsys.readouterr().out
    assert shown.replace("\n", "").isprintable()
    assert "\ufffd1m‹U+202E›.gguf" in shown and ("evil␛[2J" in shown or arguments)


def test_tokenize_needs_the_tokenizer_only_and_keeps_bytes():
    plain = json.loads(tui_chat("tokenize", "-m", "builtin", "--json", text="Hello <|im_end|> a\n").stdout)
    without_end = json.loads(
        tui_chat("tokenize", "-m", "builtin", "--json", text="Hello <|im_end|> a").stdout
    )
    special = json.loads(
        tui_chat("tokenize", "-m", "builtin", "--json", "--special", text="Hello <|im_end|>").stdout
    )
    assert plain["ids"][:-1] == without_end["ids"]
    assert len(special["ids"]) < len(without_end["ids"])
    assert special["ids"][-1] not in without_end["ids"]
    assert json.loads(tui_chat("tokenize", "-m", "builtin", "--json").stdout) == {"ids": []}
    lines = tui_chat("tokenize", "-m", "builtin", text="Hello").stdout.decode().splitlines()
    assert [json.loads(line.split(maxsplit=1)[1]) for line in lines] == ["Hello"]


def test_tokenize_imports_no_torch():
    code = (
        "import sys\nfrom app.cli.program import main\nmain(['tokenize', '-m', 'builtin'])\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], input=b"hi", cwd=ROOT, check=True, capture_output=True)


def test_tokenize_names_the_byte_that_is_not_utf8():
    done = tui_chat("tokenize", "-m", "builtin", text=b"ab\xffc")
    assert done.returncode == 1
    assert "byte 2" in done.stderr.decode()


def test_a_missing_model_is_one_line():
    done = tui_chat("ask", "-m", "/no/such.gguf", "hi")
    assert done.returncode == 1
    assert done.stderr.decode() == "tui-chat: there is no model file /no/such.gguf\n"


@pytest.mark.parametrize("arguments", ["ask hi", "models", "where", "bench", "tokenize -m builtin"])
def test_a_closed_stdout_is_one_clear_line(arguments):
    done = closing(f"{arguments} >&-")
    assert done.returncode == 1 and done.stdout == b""
    assert done.stderr == b"tui-chat: stdout is closed: there is nowhere to write to\n"


def test_without_a_terminal_a_closed_stdout_changes_nothing():
    done = closing(">&-")
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1 and b"no terminal" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code"), [("where 2>&-", 0), ("where <&-", 0), ("ask <&- 2>&-", 2), ("ask <&- >&- 2>&-", 1)]
)
def test_other_closed_streams_are_no_error(arguments, code):
    done = closing(arguments)
    assert done.returncode == code and b"Error" not in done.stderr
    assert bool(done.stdout) == (code == 0)


def closing(arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run the program by a shell, which closes streams of it."""
    command = f"exec {shlex.quote(sys.executable)} -m app {arguments}"
    return subprocess.run(["sh", "-c", command], capture_output=True, cwd=ROOT, timeout=60, check=False)


def test_architectures(capsys):
    assert program.main(["architectures"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["ARCHITECTURE", "RUNS", "MISSING"]
    rows = {line.split()[0]: line for line in lines}
    assert rows["qwen3"].split() == ["qwen3", "yes"]
    assert rows["mamba"].endswith("  no    recurrent state")
    assert program.main(["architectures", "--json"]) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert found["qwen3"] == {"name": "qwen3", "runs": True, "missing": None}
    assert found["mamba"] == {"name": "mamba", "runs": False, "missing": "recurrent state"}


def test_models_of_other_programs_are_listed_with_what_fits(home, monkeypatch, capsys):
    stores = Stores(home)
    link = stores.hugging_face("a/b-GGUF", "b-Q4_K_M.gguf", "abc")
    stores.ollama("registry.ollama.ai/library/tern/1b", model=link.read_bytes(), system=b"Be brief.")
    assert program.main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        "NAME",
        "FROM",
        "TYPE",
        "QUANT",
        "SIZE",
        "PARAMETERS",
        "CONTEXT",
        "FITS",
        "FILE",
    ]
    assert [line.split()[0] for line in lines[2:]] == ["a/b-GGUF/b-Q4_K_M", "tern:1b"]
    assert "Hugging Face" in lines[2] and " of 512 " in lines[2]
    assert program.main(["models", "--json"]) == 0
    hub, ollama = json.loads(capsys.readouterr().out)[1:]
    assert (hub["store"], hub["path"], hub["names"]) == ("hugging-face", str(link), ["a/b-GGUF/b-Q4_K_M"])
    assert ollama["details"] == {"system": "Be brief."} and ollama["tokenizer"] == "gpt2 (qwen2)"
    assert ollama["fit"]["verdict"] == "fits" and "chats of 512" in ollama["fit"]["text"]
    assert ollama["speed"] is None and ollama["last_used"] is None and not ollama["favourite"]
    assert ollama["kernels"]["attention"]
    home.joinpath("config").mkdir()
    locations().settings_file.write_text('[models]\nleave_out = ["ollama"]\n')
    assert program.main(["models", "--json"]) == 0
    assert [one["store"] for one in json.loads(capsys.readouterr().out)] == ["tui-chat", "hugging-face"]
