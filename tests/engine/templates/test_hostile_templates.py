"""Templates that would hold or fill the process: each ends at its limit, with a cause, and others render."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from engine.gguf.file import open_gguf
from engine.templates import renderer
from engine.templates.chat_template import ChatTemplate, Message
from engine.templates.renderer import Limits, Renderer, TemplateLimitError
from engine.tokenizer.tokenizer import Tokenizer
from tests.support.text_samples import write_bpe

ROOT = Path(__file__).parents[3]
CONVERSATION = [Message("user", "one"), Message("assistant", "two"), Message("user", "three")]
HONEST = "{% for message in messages %}{{ message.content }};{% endfor %}"
DEEP = (
    "{% set ns = namespace(a=[1], b=[1]) %}"
    "{% for i in range(40) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}"
)
LOOPS = "".join(f"{{% for a{i} in range(99999) %}}" for i in range(4)) + "{% endfor %}" * 4
TIME, MEMORY = "ran longer", "too much memory"
ATTACKS = {
    "equal": (DEEP + "{{ ns.a == ns.b }}", TIME),
    "upper": (DEEP + "{{ ns.a | upper }}", TIME),
    "sort": (DEEP + "{{ [ns.a, ns.b] | sort }}", TIME),
    "urlencode": (DEEP + "{{ ns.a | urlencode }}", TIME),
    "lipsum": ("{{ lipsum(n=10**7) }}", TIME),
    "loops": (LOOPS, TIME),
    "format": ("{{ '{:>9999999999}'.format(1) }}", MEMORY),
    "repeat": ("{{ 'a' * 10**10 }}", MEMORY),
    "percent": ("{{ '%9999999999d' % 1 }}", MEMORY),
    "calls": ("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}", "too deeply"),
    "nested": ("{{ " + "(" * 100_000, "too deeply"),
    "long": ("{{ messages[0].content * 9000000 }}", "renders more"),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Tokenizer.from_gguf(open_gguf(write_bpe(tmp_path_factory.mktemp("v") / "v.gguf", "qwen2")))


@pytest.fixture(scope="module", autouse=True)
def shared():
    """One renderer with little time for all of these tests."""
    before, renderer.SHARED = renderer.SHARED, Renderer(Limits(processor_seconds=0.2))
    yield renderer.SHARED
    renderer.SHARED = before


def others_render(tokenizer):
    other = ChatTemplate(HONEST, tokenizer)
    return other.warning is None and other.render(CONVERSATION) == "one;two;three;"


@pytest.mark.parametrize("name", ATTACKS)
def test_at_load_it_is_replaced_and_said(name, tokenizer):
    source, cause = ATTACKS[name]
    template = ChatTemplate(source, tokenizer, label="file.gguf")
    assert template.warning.startswith("file.gguf: the chat template failed (")
    assert cause in template.warning and "ChatML is used instead" in template.warning
    assert "<|im_start|>user\none<|im_end|>" in template.render(CONVERSATION)
    assert others_render(tokenizer)


@pytest.mark.parametrize("name", ["equal", "upper", "format", "repeat"])
def test_at_a_turn_it_is_replaced_and_said(name, tokenizer):
    source, cause = ATTACKS[name]
    source = f"{{% if messages[-1].content == 'three' %}}{source}{{% endif %}}{HONEST}"
    template = ChatTemplate(source, tokenizer, label="file.gguf")
    assert template.warning is None and template.prompt(CONVERSATION[:1]).warning is None
    prompt = template.prompt(CONVERSATION)
    assert cause in prompt.warning and "ChatML was used for this answer" in prompt.warning
    assert tokenizer.decode(prompt.ids, special=True).startswith("<|im_start|>user\none<|im_end|>")
    assert template.prompt(CONVERSATION[:1]).warning is None
    assert others_render(tokenizer)


def test_a_long_cause_is_cut_and_readable_and_steers_no_terminal(tokenizer):
    source = "{{ raise_exception('no\n\x1b]0;title\x07' ~ messages[0].content * 999) }}"
    warning = ChatTemplate(source, tokenizer).prompt([Message("user", "<|im_start|>")]).warning
    assert "no \ufffd]0;title\ufffd<|im_start|><|im_start|>" in warning and "…" in warning
    assert len(warning) < 400 and warning.isprintable()


def workers(process=None):
    found = (process or psutil.Process()).children()
    return [child for child in found if "engine.templates" in " ".join(child.cmdline())]


def test_a_worker_that_was_killed_is_replaced_and_asked_again(shared):
    assert shared.render(HONEST, {"messages": [{"content": "a"}]}) == "a;"
    for child in workers():
        child.kill()
    assert shared.render(HONEST, {"messages": [{"content": "b"}]}) == "b;"


def test_where_processor_time_has_no_limit_the_clock_has():
    slow = Renderer(Limits(processor_seconds=60, wall_seconds=0.1))
    with pytest.raises(TemplateLimitError, match=r"within 0\.1 s"):
        slow.render(LOOPS, {})


def test_where_the_system_limits_no_memory_the_watch_does(monkeypatch):
    monkeypatch.setattr(renderer, "_memory_of", lambda pid: 1 << 40)
    with pytest.raises(TemplateLimitError, match=MEMORY):
        Renderer(Limits(processor_seconds=60)).render(LOOPS, {})


def test_a_program_that_cannot_be_started_is_said(monkeypatch, tokenizer):
    monkeypatch.setattr(renderer, "SHARED", Renderer())
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    template = ChatTemplate(HONEST, tokenizer)
    assert "no process" in template.warning and "/nowhere/python" in template.warning
    assert "<|im_start|>user\none" in template.render(CONVERSATION)


def test_threads_share_a_worker_and_get_their_own_texts(shared):
    found = {}

    def render(number):
        found[number] = [shared.render(HONEST, {"messages": [{"content": str(number)}]}) for _ in range(20)]

    threads = [threading.Thread(target=render, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [f"{number};"] * 20 for number in range(4)}


PROGRAM = """
import sys
from engine.templates.renderer import Limits, Renderer
one = Renderer(Limits(processor_seconds=float(sys.argv[1])))
one.check("")
print("ready", flush=True)
try:
    one.render(sys.argv[2], {})
    sys.stdin.read()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.fixture
def program(request):
    """A program that renders a template within so many seconds, and its worker."""
    # Where the tests are a job that ignores Ctrl+C, programs that they start would too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    command = [sys.executable, "-c", PROGRAM, *request.param]
    started = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before)
    with started:
        assert started.stdout.readline() == "ready\n"
        (child,) = workers(psutil.Process(started.pid))
        spent = child.cpu_times().user
        while request.param[1] == LOOPS and child.cpu_times().user < spent + 0.05:
            time.sleep(0.01)
        yield started, child
        started.kill()


def wait_for_end(child):
    # Whoever inherits it need not look after it at once.
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)


@pytest.mark.parametrize("program", [("60", LOOPS)], indirect=True)
def test_an_interruption_is_heard_while_a_template_is_rendered(program):
    started, child = program
    started.send_signal(signal.SIGINT)
    assert started.stdout.readline() == "interrupted\n"
    wait_for_end(child)


@pytest.mark.parametrize("program", [("0.3", LOOPS), ("60", HONEST)], indirect=True, ids=["busy", "idle"])
def test_the_worker_of_a_program_that_was_killed_ends(program):
    started, child = program
    started.kill()
    wait_for_end(child)
