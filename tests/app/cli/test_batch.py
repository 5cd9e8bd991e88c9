"""A file of prompts: what its lines may say, results as they come, and going on where it ended."""

import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from app.cli import program
from app.cli.batch import command
from app.cli.batch.lines import LineError, done_ids, read_job, read_jobs
from engine import (
    Finished,
    FinishReason,
    Priority,
    Prompt,
    RequestError,
    TextDelta,
    Thinking,
    ThinkingSupport,
)

ROOT = Path(__file__).parents[3]


class Template:
    warning = tool_format = None
    thinking_support = ThinkingSupport(can_switch=True, has_thoughts=True)

    def __init__(self):
        self.thought = []

    def prompt(self, messages, *, kept, thinking, tools):
        self.thought.append(thinking)
        return Prompt(list(range(len(messages) + 2)), False, None)


class Generation:
    """Answers with the id that it was asked under, once the gate is open."""

    finished = None

    def __init__(self, model, request):
        self.model, self.request, self.cancelled = model, request, threading.Event()

    def cancel(self):
        self.cancelled.set()

    def events(self):
        if self.request.label in self.model.interrupts:
            self.model.interrupts[self.request.label]()
            self.cancelled.wait()
            yield Finished(FinishReason.CANCELLED, None, 3, 0, 0, 0.1, None, 0.0)
            return
        yield TextDelta(f"answer to {self.request.label}", (1, 2))
        yield Finished(FinishReason.STOP, None, 3, 0, 2, 0.1, 2.0, 50.0)


class Model:
    name, path, warning = "fake", Path("fake.gguf"), None
    max_tokens = context_length = longest_context = 2048

    def __init__(self):
        self.template, self.tokenizer = Template(), self
        self.requests, self.interrupts, self.refuse = [], {}, set()

    def submit(self, request):
        self.requests.append(request)
        if request.label in self.refuse:
            raise RequestError("it can never fit")
        return Generation(self, request)


class Engine:
    device = "cpu"

    def __init__(self, model):
        self.model, self.closed = model, False

    def load(self, path):
        return self.model

    def close(self):
        self.closed = True


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TUI_CHAT_HOME", str(tmp_path / "home"))

    def run_it(model, lines, *arguments):
        (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
        engine = Engine(model)
        monkeypatch.setattr(command, "make_engine", lambda settings: engine)
        code = program.main(["batch", str(tmp_path / "in.jsonl"), *arguments])
        out, err = capsys.readouterr()
        return code, [json.loads(line) for line in out.splitlines()], err

    return run_it


def line(**values) -> str:
    return json.dumps(values)


def test_every_prompt_is_answered_at_low_priority(run):
    model = Model()
    lines = [
        line(id="a", prompt="one", temperature=0, max_tokens=9, stop="END"),
        "",
        line(id=7, prompt="two"),
    ]
    code, results, err = run(model, lines, "--think", "off")
    assert code == 0 and {result["id"]: result["text"] for result in results} == {
        "a": "answer to a",
        "7": "answer to 7",
    }
    [asked] = [request for request in model.requests if request.label == "a"]
    assert asked.priority is Priority.LOW and asked.sampling.temperature == 0
    assert asked.max_tokens == 9 and asked.stop == ("END",)
    assert model.template.thought == [Thinking("off")] * 2
    assert "2 of 2" in err and results[0]["finish_reason"] == "stop" and results[0]["error"] is None


def test_lines_of_openai_are_answered_in_their_form(run):
    body = {"model": "x", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}
    code, [result], _ = run(Model(), [line(custom_id="q-1", method="POST", url="/v1", body=body)])
    assert code == 0 and result["custom_id"] == "q-1" and result["error"] is None
    answer = result["response"]["body"]
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "answer to q-1"}
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def test_a_second_run_asks_only_what_has_no_result(run, tmp_path):
    out = tmp_path / "out.jsonl"
    model = Model()
    model.refuse = {"b"}
    lines = [line(id=name, prompt="x") for name in "abc"]
    code, _, err = run(model, lines, "-o", str(out))
    assert code == 1 and "1 failed" in err
    with out.open("a") as file:
        file.write('{"id": "c", "te')
    again = Model()
    code, results, err = run(again, [*lines, line(id="d", prompt="x")], "-o", str(out))
    assert code == 0 and results == [] and "2 of 4 have results already" in err
    assert sorted(request.label for request in again.requests) == ["b", "d"]
    written = [json.loads(one) for one in out.read_text().splitlines()]
    assert [one["error"] for one in written if one["id"] == "b"] == ["it can never fit", None]
    assert run(Model(), lines, "-o", str(out))[0] == 0
    assert done_ids(out) == {"a", "b", "c", "d"}


BAD = [
    ("nonsense", "it is no JSON"),
    ("[1]", "it is no JSON object"),
    (line(id="x"), "either prompt or messages"),
    (line(id="x", prompt="a", messages=[]), "either prompt or messages"),
    (line(id="x", prompt=" "), "prompt is no text, or empty"),
    (line(id=[], prompt="a"), "id is neither text nor a number"),
    (line(id="x", prompt="a", temperature=-1), "temperature: -1 is not between"),
    (line(id="x", prompt="a", temperature="hot"), "temperature: 'hot' is not a number"),
    (line(id="x", prompt="a", max_tokens=0), "max_tokens is no whole number from 1 on"),
    (line(id="x", prompt="a", stop=[""]), "stop is neither"),
    (line(id="x", prompt="a", thinking="often"), "thinking must be"),
    (line(id="x", messages=[{"role": "judge", "content": "a"}]), "each has a role"),
    (line(id="x", messages=[{"role": "user", "content": [{"type": "image_url"}]}]), "a content is no text"),
    (line(id="x", messages=[{"role": "assistant", "content": "a"}]), "the last one is not the user's"),
    (line(custom_id="x", body=[]), "body is no object"),
    (line(custom_id=None, body={"prompt": "a"}), "custom_id is no text"),
    ("[" * 100_000, "it is no JSON"),
]


@pytest.mark.parametrize(("text", "reason"), BAD)
def test_a_bad_line_is_named_by_what_is_wrong_with_it(text, reason):
    with pytest.raises(LineError, match=reason.replace("(", r"\(")):
        read_job(text, 1)


def test_bad_lines_are_left_out_and_named_and_with_strict_nothing_runs(run):
    lines = [line(id="a", prompt="x"), "{", line(id="a", prompt="again")]
    code, results, err = run(Model(), lines)
    assert code == 1 and [result["id"] for result in results] == ["a"]
    assert "in.jsonl: line 2: it is no JSON" in err and "line 3: the id 'a' stands there before" in err
    model = Model()
    code, results, err = run(model, lines, "--strict")
    assert (code, results, model.requests) == (1, [], []) and "nothing was run, 2 bad lines" in err


def test_a_line_without_an_id_has_its_number():
    jobs, bad = read_jobs("\n" + line(prompt="a") + "\n")
    assert [job.id for job in jobs] == ["line 2"] and not bad


def test_an_interruption_keeps_what_is_done_and_ends_the_rest(run, tmp_path, monkeypatch):
    out = tmp_path / "out.jsonl"
    model, done = Model(), threading.Event()
    written = command._write

    def write(record, file, progress):
        written(record, file, progress)
        done.set()

    def interrupted(running, **more):
        done.wait(60)
        raise KeyboardInterrupt

    waits = iter([command.wait])
    monkeypatch.setattr(command, "_write", write)
    monkeypatch.setattr(command, "wait", lambda *a, **k: next(waits, interrupted)(*a, **k))
    model.interrupts = {"b": lambda: None}
    code, _, err = run(model, [line(id="a", prompt="x"), line(id="b", prompt="x")], "-o", str(out))
    assert code == 130 and "the same command goes on with the rest" in err
    assert [json.loads(one)["id"] for one in out.read_text().splitlines()] == ["a"]


def test_the_help_imports_nothing_heavy():
    code = "import sys; from app.cli.program import main\ntry: main(['batch', '--help'])\n"
    code += "except SystemExit: pass\nprint(sorted({'torch', 'textual', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "exit code" in done.stdout and done.stdout.endswith("[]\n")


def test_the_builtin_model_answers_a_batch(tmp_path):
    lines = [line(id=str(number), prompt=f"Say {number}.", max_tokens=6, seed=1) for number in range(3)]
    environment = os.environ | {"TUI_CHAT_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-m", "app", "batch", "-"]
    options = {"cwd": ROOT, "env": environment, "capture_output": True, "check": True}
    done = subprocess.run(arguments, input="\n".join(lines).encode(), **options)
    results = [json.loads(one) for one in io.BytesIO(done.stdout)]
    assert sorted(result["id"] for result in results) == ["0", "1", "2"]
    assert all(1 <= result["completion_tokens"] <= 6 for result in results)
