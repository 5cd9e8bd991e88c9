"""`tui-chat ask --tools`: calls are asked about on the terminal, run, and gone on from."""

import json

import pytest

from app.cli import ask_tools
from app.settings.paths import locations
from app.tools.results import ToolResult
from tests.app.cli.test_ask import FakeModel, Terminal, run
from tests.app.tools.scripted import HERMES, ScriptedServers, call_text

__all__ = ["run"]


class Steps(FakeModel):
    """A model that writes another answer each time it is asked."""

    def __init__(self, *answers):
        super().__init__([])
        self.answers = list(answers)
        self.template.tool_format = HERMES
        self.asked = []

    def submit(self, request):
        self.texts = [self.answers.pop(0)]
        self.asked.append([(one.role, one.content) for one in self.template.messages])
        return super().submit(request)


@pytest.fixture
def servers(monkeypatch, tmp_path, run):
    """Scripted servers in place of those that the settings name."""
    settings = locations().settings_file
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text('[tools.files]\ncommand = "x"\n')
    scripted = ScriptedServers()

    def made(named):
        scripted.named = named()
        return scripted

    monkeypatch.setattr("app.tools.servers.ToolServers", made)
    return scripted


@pytest.fixture
def answering(run, monkeypatch):
    """Runs `ask --tools` where somebody sits at a terminal and writes these lines."""

    def run_it(model, *arguments, lines):
        monkeypatch.setattr(ask_tools, "_is_terminal", lambda stream: True)
        monkeypatch.setattr(Terminal, "readline", lambda self: lines.pop(0))
        return run(model, "what is in a.txt", "--tools", *arguments)

    return run_it


def test_a_call_is_shown_with_its_arguments_and_runs_when_allowed(answering, servers):
    model = Steps("I look. " + call_text(), "It says hello.")
    code, out, err = answering(model, lines=["y\n"])
    assert (code, out) == (0, "I look.\nIt says hello.\n")
    assert servers.calls == [("read", {"path": "a.txt"})]
    assert "asks for read of files: Reads a file" in err and '"path": "a.txt"' in err and "Run it?" in err
    assert 'read of files { "path": "a.txt" }: 5 characters' in err
    assert model.asked[1][1:] == [("assistant", "I look."), ("tool", "hello")]


@pytest.mark.parametrize("line", ["\n", "no\n", "what\n", ""])
def test_anything_but_yes_refuses_and_the_model_hears_it(answering, servers, line):
    model = Steps(call_text(), "Then not.")
    code, out, err = answering(model, lines=[line])
    assert (code, out, servers.calls) == (0, "Then not.\n", []) and "refused" in err
    assert model.asked[1][-1] == ("tool", "The user refused this call.")


def test_always_is_asked_once(answering, servers):
    model = Steps(call_text() + call_text(), call_text(), "Done.")
    assert answering(model, lines=["a\n"])[:2] == (0, "Done.\n")
    assert len(servers.calls) == 3


def test_an_allowed_tool_runs_without_a_terminal_and_others_are_refused(run, servers):
    model = Steps(call_text() + '<tool_call>{"name": "list", "arguments": {}}</tool_call>', "Done.")
    code, out, err = run(model, "q", "--allow", "read", "--allow", "raed", "--json", stdin=b"more")
    record = json.loads(out)
    assert (code, record["text"], servers.calls) == (0, "Done.", [("read", {"path": "a.txt"})])
    assert [(one["name"], one["status"], one["result"]) for one in record["calls"]] == [
        ("read", "complete", "hello"),
        ("list", "stopped", "The user refused this call."),
    ]
    assert "nobody can be asked: --allow list" in err and "--allow raed: there is no such tool" in err


def test_a_result_that_fails_is_said_and_the_answer_goes_on(run, servers):
    servers.result = ToolResult("read did not answer within 60 s; it was given up.", failed=True)
    code, out, err = run(Steps(call_text(), "Sorry."), "q", "--allow", "*")
    assert (code, out) == (0, "Sorry.\n") and "failed: read did not answer within 60 s" in err


def test_rounds_of_calls_end(run, servers):
    model = Steps(*[call_text()] * 9)
    code, out, err = run(model, "q", "--allow", "*")
    assert (code, out, len(servers.calls)) == (0, "", 8) and "tools have run 8 times" in err


def test_what_cannot_be_is_said_before_anything_is_opened(run, servers):
    model = Steps()
    code, out, err = run(model, "q", "--tools", stdin=b"more")
    assert (code, out) == (2, "") and "there is none: allow tools with --allow TOOL" in err
    code, _, err = run(model, "q", "--allow", "read", "--regex", "a+")
    assert code == 2 and "held to a form calls nothing" in err
    locations().settings_file.write_text("")
    code, _, err = run(model, "q", "--tools")
    assert code == 2 and "the settings name no servers of tools" in err


def test_a_model_without_words_for_tools_says_so(run, servers):
    model = FakeModel(["Hello."])
    code, out, err = run(model, "q", "--allow", "*")
    assert (code, out) == (0, "Hello.\n") and "takes no tools: it answers without them" in err


def test_ctrl_c_at_the_question_ends_the_program(answering, servers, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ask_tools, "_word_on", interrupted)
    assert answering(Steps(call_text()), lines=[])[0] == 130 and servers.calls == []
