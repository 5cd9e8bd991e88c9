import io
import json
import os
import pty
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from app.cli import ask, program
from app.models.fit.speeds import LEAST_TOKENS, SpeedStore
from app.models.listed.notes import ModelNotes
from app.settings.paths import locations
from engine import (
    THINK,
    Constraint,
    ConstraintError,
    ConstraintKind,
    Finished,
    FinishReason,
    ModelFileError,
    Prompt,
    TextDelta,
    Thinking,
    ThinkingSupport,
)
from engine.api.answer_format import format_of
from tests.support.gguf_bytes import entry, gguf
from tests.support.tiny_gguf import make_tiny
from tests.support.tiny_vocab import bpe_vocabulary

ROOT = Path(__file__).parents[3]


class FakeTemplate:
    warning = None
    answer_format = THINK
    tool_format = None
    thinking_support = ThinkingSupport()

    def __init__(self, opened=False):
        self.opened = opened
        self.failed = None
        self.messages = self.thought = None
        self.ending = ()

    def prompt(self, messages, *, thinking, **_):
        self.messages, self.thought = list(messages), thinking
        ids = [1, 2, 3, *range(self.messages[-1].content.count("x"))]
        return Prompt(ids, self.opened, self.failed, self.answer_format, self.ending)


class FakeModel:
    """A model, its tokenizer and its generation in one."""

    name = "fake"
    finished = None
    path = Path("fake.gguf")
    warning = None
    max_tokens = context_length = longest_context = 2048

    def __init__(self, texts, reason=FinishReason.STOP, opened=False, error=None):
        self.texts, self.reason, self.error = texts, reason, error
        self.template = FakeTemplate(opened)
        self.tokenizer = self
        self.request = None
        self.cancelled = False

    def submit(self, request):
        self.request = request
        return self

    def check_constraint(self, constraint):
        if "no such" in constraint.text:
            raise ConstraintError("line 1, column 8", "unknown name")

    def cancel(self):
        self.cancelled = True

    def events(self):
        for number, text in enumerate(self.texts):
            if isinstance(text, BaseException):
                raise text
            yield text if isinstance(text, TextDelta) else TextDelta(text, (number,))
        yield Finished(self.reason, self.error, 3, 0, len(self.texts), 0.1, 2.0, 50.0)


class FakeEngine:
    def __init__(self, model):
        self.model = model
        self.closed = False

    def load(self, path):
        if isinstance(self.model, Exception):
            raise self.model
        return self.model

    def stats(self):
        return mock.Mock(device_of=lambda path: "cpu")

    def close(self):
        self.closed = True


class Piped(io.TextIOWrapper):
    def __init__(self, data):
        super().__init__(io.BytesIO(data))


class Terminal(Piped):
    def isatty(self):
        return True


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TUI_CHAT_HOME", str(tmp_path))
    mentioned = tmp_path / "state" / "models-mentioned"
    mentioned.parent.mkdir()
    mentioned.touch()

    def run_it(model, *arguments, stdin=None):
        engine = FakeEngine(model)
        started = []
        monkeypatch.setattr(ask, "make_engine", lambda settings: started.append(engine) or engine)
        monkeypatch.setattr("sys.stdin", Terminal(b"") if stdin is None else Piped(stdin))
        code = program.main(["ask", *arguments])
        out, err = capsys.readouterr()
        assert engine.closed is bool(started)
        return code, out, err

    return run_it


def test_the_speed_of_an_answer_is_remembered(run, tmp_path):
    assert run(FakeModel(["a"] * LEAST_TOKENS), "q")[0] == 0
    run(FakeModel(["a"]), "too short to tell")
    (speed,) = SpeedStore(locations().speeds_file).all().values()
    assert (speed.tok_s, speed.answers, speed.device) == (50.0, 1, "cpu")


def test_other_models_are_mentioned_behind_the_first_answer(run, tmp_path):
    (tmp_path / "state" / "models-mentioned").unlink()
    code, out, err = run(FakeModel(["a"]), "q")
    assert (code, out) == (0, "a\n") and err.count("tui-chat pull --list") == 1
    assert run(FakeModel(["a"]), "q") == (0, "a\n", "")


def on_terminal(run, model, *arguments) -> str:
    """What a terminal is sent, its line ends made plain again."""
    reader, writer = pty.openpty()
    with os.fdopen(writer, "w") as stream:
        with mock.patch.object(sys, "stdout", stream), mock.patch.object(sys, "stderr", sys.__stderr__):
            run(model, *arguments)
        os.write(writer, b"\0")
        found = b""
        while not found.endswith(b"\0"):
            found += os.read(reader, 4096)
    os.close(reader)
    return found[:-1].decode().replace("\r\n", "\n")


def test_only_the_answer_is_on_stdout(run):
    model = FakeModel(["<think>", "hm", "</think>", "\n\nYes", "."])
    assert run(model, "Is it?") == (0, "Yes.\n", "")
    assert model.request.prompt_ids == (1, 2, 3)
    assert model.template.messages[-1].content == "Is it?"


def test_reasoning_in_a_message_of_its_own_is_not_on_stdout(run):
    marks = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>")
    words = ["<|channel|>", "analysis", "<|message|>", "hm", "<|end|>", "<|start|>", "assistant"]
    words += ["<|channel|>", "final", "<|message|>", "Yes <|end|>."]
    model = FakeModel([TextDelta(word, (n,), word if word in marks else "") for n, word in enumerate(words)])
    model.template.answer_format = format_of("", marks)
    assert run(model, "Is it?") == (0, "Yes <|end|>.\n", "")


STEERING = "a\x1b]52;c;aGk=\x07b\x9b2Jc\rd\te\u202ef\n"


@pytest.mark.parametrize("split", [False, True])
def test_an_answer_does_not_steer_a_terminal(run, split):
    shown = on_terminal(run, FakeModel(list(STEERING) if split else [STEERING]), "q")
    assert shown == "a␛]52;c;aGk=␇b\ufffd2Jc␍d\te‹U+202E›f\n"


def test_an_answer_as_json_does_not_steer_a_terminal(run):
    shown = on_terminal(run, FakeModel([STEERING]), "q", "--json")
    assert shown.removesuffix("\n").isprintable()
    assert json.loads(shown)["text"] == STEERING.replace("\x9b", "\ufffd").replace("\u202e", "‹U+202E›")


def test_through_a_pipe_an_answer_goes_as_it_is(run):
    assert run(FakeModel([STEERING]), "q") == (0, STEERING, "")


def test_options_reach_the_request(run):
    model = FakeModel(["a"])
    arguments = ["q", "--system", "Be brief.", "--temperature", "0", "--seed", "5", "--max-tokens", "9"]
    assert run(model, *arguments)[0] == 0
    assert [(m.role, m.content) for m in model.template.messages] == [("system", "Be brief."), ("user", "q")]
    assert model.request.sampling.temperature == 0
    assert model.request.sampling.seed == 5
    assert model.request.max_tokens == 9


def test_an_answer_is_held_to_what_an_option_says(run, tmp_path):
    file = tmp_path / "held"
    file.write_text('{"type": "object"}')
    model = FakeModel(["{}"])
    assert run(model, "hello", "--json-schema", str(file))[0] == 0
    assert model.request.constraint == Constraint(ConstraintKind.JSON_SCHEMA, '{"type": "object"}')
    assert run(model, "hello", "--regex", "[0-9]+")[0] == 0
    assert model.request.constraint == Constraint(ConstraintKind.REGEX, "[0-9]+")
    file.write_text("start: no such")
    code, _, err = run(model, "hello", "--grammar", str(file))
    assert code == 2 and err == f"tui-chat: --grammar {file}: line 1, column 8: unknown name\n"
    code, _, err = run(model, "hello", "--grammar", str(tmp_path / "none"))
    assert code == 2 and "No such file" in err


def test_a_file_recommends_what_no_option_or_setting_says(run, tmp_path):
    path = tmp_path / "tern.gguf"
    values = {"temp": (6, 0.25), "top_k": (5, 7), "top_p": (6, 0.5)}
    keys = [entry(f"general.sampling.{key}", *value) for key, value in values.items()]
    path.write_bytes(gguf([entry("general.architecture", 8, "llama"), *keys]))
    settings = locations().settings_file
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text("[sampling]\ntop_k = 40\n")
    model = FakeModel(["a"])
    model.path = path
    assert run(model, "q", "-m", str(path), "--temperature", "1.5")[0] == 0
    sampling = model.request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (1.5, 40, 0.5)
    assert path in ModelNotes(locations().notes_file).read().used


@pytest.mark.parametrize(
    ("arguments", "stdin", "expected"),
    [
        (["Sum up:"], "a é\n".encode(), "Sum up:\n\na é"),
        ([], b"only piped\n\n", "only piped"),
        (["-"], b"piped", "piped"),
        (["alone"], b"", "alone"),
        ([], b"bad \xff byte", "bad � byte"),
    ],
)
def test_piped_text_is_the_prompt_or_stands_behind_it(run, arguments, stdin, expected):
    model = FakeModel(["a"])
    assert run(model, *arguments, stdin=stdin)[0] == 0
    assert model.template.messages[-1].content == expected


@pytest.mark.parametrize("stdin", [None, b"", b"\n"])
def test_nothing_to_ask_is_wrong_usage(run, stdin):
    code, out, err = run(FakeModel(["a"]), stdin=stdin)
    assert (code, out) == (2, "")
    assert "nothing to ask" in err


def test_json(run):
    model = FakeModel(["hm", "</think>", "Yes"], reason=FinishReason.LENGTH, opened=True)
    code, out, _ = run(model, "q", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["text"], found["reasoning"]) == ("Yes", "hm")
    assert (found["finish_reason"], found["completion_tokens"]) == ("length", 3)


def test_an_answer_that_is_all_reasoning_is_explained(run):
    code, out, err = run(FakeModel(["hm"], opened=True), "q")
    assert (code, out.strip()) == (0, "")
    assert "--max-tokens" in err


def test_a_template_that_fails_for_the_question_is_said(run):
    model = FakeModel(["a"])
    model.template.failed = "fake.gguf: the chat template failed (no); ChatML was used for this answer."
    assert run(model, "q") == (0, "a\n", f"tui-chat: warning: {model.template.failed}\n")


def test_errors_are_one_line(run):
    failed = FakeModel(["half"], reason=FinishReason.ERROR, error="the logits are not numbers")
    assert run(failed, "q") == (1, "half\n", "tui-chat: the logits are not numbers\n")
    broken = ModelFileError("x.gguf: offset 3 is outside of the file")
    assert run(broken, "q") == (1, "", "tui-chat: x.gguf: offset 3 is outside of the file\n")


@pytest.mark.parametrize("option", [("--temperature", "-1"), ("--seed", "-3"), ("--max-tokens", "0")])
def test_a_value_out_of_range_is_wrong_usage(run, option):
    code, out, err = run(FakeModel(["a"]), "q", *option)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"tui-chat: {option[0]}: {option[1]}")


def test_a_prompt_that_is_too_long_is_told_in_plain_words_and_a_long_answer_ends_with_the_context(run):
    code, out, err = run(FakeModel(["a"]), "x" * 2500)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "The prompt is 2,503 tokens long; fake reads at most 2,048" in err
    model = FakeModel(["a"])
    assert run(model, "q", "--max-tokens", "99999")[0] == 0
    assert model.request.max_tokens is None


def test_an_interruption_keeps_what_was_written_and_ends_with_130(run):
    model = FakeModel(["half", KeyboardInterrupt()])
    code, out, _ = run(model, "q")
    assert (code, out) == (130, "half")
    assert model.cancelled


NOISY = """
import os
from app.cli.ask import answer_stream
with answer_stream() as out:
    os.write(1, b"noise of a library\\n")
    print("more noise")
    out.write("answer")
print(" and after")
"""


def test_libraries_cannot_write_into_the_answer():
    done = subprocess.run([sys.executable, "-c", NOISY], capture_output=True, cwd=ROOT, check=True)
    assert done.stdout == b"answer and after\n"
    assert done.stderr == b"noise of a library\nmore noise\n"


@pytest.fixture
def environment(tmp_path):
    return os.environ | {"TUI_CHAT_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}


def test_the_builtin_model_answers(environment):
    command = [sys.executable, "-m", "app", "ask", "--temperature", "0", "--max-tokens", "8", "--json"]
    options = {"cwd": ROOT, "env": environment, "capture_output": True, "timeout": 120, "check": True}
    found = json.loads(subprocess.run(command, input=b"Hello", **options).stdout)
    assert found["text"].strip()
    assert found["finish_reason"] in ("stop", "length")
    assert 1 <= found["completion_tokens"] <= 8


@pytest.fixture
def interruptible():
    """Programs that are started can be interrupted, where the tests are a job that ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_closed_pipe_and_an_interrupt_end_it_quietly(environment, tmp_path):
    # No token ends its answers, so they go on however quick the model is and whatever it draws.
    vocabulary = bpe_vocabulary()
    texts = [text.replace("<|", "<:") for text in vocabulary.tokens]
    endless = replace(vocabulary, eos=None, tokens=texts)
    path = make_tiny(tmp_path / "endless.gguf", "llama", endless, context_length=8192)
    given = ["-m", str(path), "-t", "4", "--max-tokens", "6000", "Go on."]
    command = [sys.executable, "-m", "app", "ask", *given]
    options = {"cwd": ROOT, "env": environment, "stdin": subprocess.DEVNULL}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **options, **pipes) as reader_gone:
        assert reader_gone.stdout.read(1)
        reader_gone.stdout.close()
        assert (reader_gone.wait(60), reader_gone.stderr.read()) == (0, b"")
    with subprocess.Popen(command, **options, **pipes) as interrupted:
        assert interrupted.stdout.read(1)
        interrupted.send_signal(signal.SIGINT)
        assert (interrupted.wait(60), interrupted.stderr.read()) == (130, b"")


class Thinker(FakeModel):
    """Thinks for ever, until it is told to answer; then it answers."""

    def __init__(self, texts, *more, **options):
        super().__init__(texts, *more, **options)
        self.template.thinking_support = ThinkingSupport(can_switch=True, has_thoughts=True)
        self.template.ending = (TextDelta("</think>", (99,), "</think>"),)
        self.requests = []

    def submit(self, request):
        self.requests.append(request)
        if len(self.requests) > 1:
            again = request.prompt_ids[-request.answered :]
            self.texts = [*(TextDelta("again", (token_id,)) for token_id in again), "Yes."]
        return super().submit(request)


def test_thoughts_of_a_question_have_a_budget(run):
    model = Thinker(["hm"] * 50, opened=True)
    assert run(model, "q", "--think", "4") == (0, "Yes.\n", "")
    assert model.requests[1].prompt_ids == (1, 2, 3, 0, 1, 2, 3, 99)
    assert model.template.thought == Thinking(budget=4)


def test_thinking_that_a_template_lacks_is_said_and_not_pretended(run):
    model = FakeModel(["Yes."])
    code, out, err = run(model, "q", "--think", "off")
    assert (code, out) == (0, "Yes.\n") and model.template.thought == Thinking()
    assert err == (
        "tui-chat: warning: the chat template of fake has no switch for thinking: off changes nothing\n"
    )
    with pytest.raises(SystemExit):
        run(FakeModel(["a"]), "q", "--think", "sometimes")


def test_an_answer_that_repeats_itself_is_ended_and_said(run, tmp_path):
    code, out, err = run(FakeModel(["again and again\n"] * 40), "q")
    assert code == 0 and out == "again and again\n" * 10
    assert "the answer repeated itself and was ended; stop_repeats = false" in err
    settings = locations().settings_file
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text("[general]\nstop_repeats = false\n[sampling]\nthinking = 'on'\n")
    model = FakeModel(["again and again\n"] * 40)
    model.template.thinking_support = ThinkingSupport(can_switch=True)
    assert run(model, "q") == (0, "again and again\n" * 40, "")
    assert model.template.thought == Thinking("on")
