"""Passes that are run again from a recording give what passes without give, bit by bit."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from engine.api.request import Request, SamplingParams
from engine.engine import Engine
from engine.runner.eager_runner import EagerRunner
from engine.runner.recorded import passes as recorded_passes
from kernels.cpu.recorded import passes
from tests.support.tiny_gguf import make_tiny

GREEDY = SamplingParams(temperature=0.0)
SHAPE = {"quant": "Q4_K", "layers": 2, "width": 256, "ffn": 256, "heads": 4, "kv_heads": 2, "head_dim": 64}


@pytest.fixture
def engine(monkeypatch) -> Iterator[Engine]:
    """What is recorded is what was asked for."""
    monkeypatch.setattr(EagerRunner, "idle_work", lambda _: False)
    with Engine("cpu", kv_budget_bytes=8 << 20, speculation="off") as engine:
        yield engine


def runner_of(engine: Engine, model):
    return engine._loop.call(lambda: engine._loop.models.get(model._key).runner)


def followed(engine: Engine, model) -> list[torch.Tensor]:
    """Has the logits of later passes kept."""
    runner, seen = runner_of(engine, model), []
    own = runner.recorded.logits

    def logits(packed, *rest):
        made = own(packed, *rest)
        if made is None:
            made = runner.decoder.forward(packed.ids, *rest, packed.logit_rows)
        seen.append(made.clone())
        return made

    runner.recorded.logits = logits
    return seen


def answers(model, count: int = 1, tokens: int = 12) -> list[str]:
    requests = [Request((20 + i, 30, 40), GREEDY, max_tokens=tokens, ignore_eog=True) for i in range(count)]
    return [answer.result(60)[0] for answer in [model.submit(request) for request in requests]]


def made(engine: Engine, model, rows: int = 1):
    found = runner_of(engine, model).recorded._recorded.items()
    return next((one for shape, one in found if shape.tokens == shape.decode == rows), None)


@pytest.mark.parametrize("rope", ["none", "yarn"])
@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_logits_are_the_same_bits(engine, tmp_path, monkeypatch, arch, rope):
    path = make_tiny(tmp_path / "tiny.gguf", arch, rope=rope, **SHAPE)
    model = engine.load(path)
    seen = followed(engine, model)
    text = answers(model)
    assert made(engine, model) is not None
    monkeypatch.setattr(recorded_passes, "MOST_TOKENS", 0)
    plain = engine.load(path)
    expected = followed(engine, plain)
    assert answers(plain) == text
    assert len(seen) == len(expected) and all(map(torch.equal, seen, expected))


def compared(engine: Engine, model) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Shapes of later passes that are run from a recording, and those of them with other bits than a pass."""
    runner = runner_of(engine, model)
    recorded, own = runner.recorded, runner.recorded.logits
    repeated: list[tuple[int, ...]] = []
    wrong: list[tuple[int, ...]] = []

    def logits(packed, layouts, kv):
        shape = recorded_passes._shape(packed, layouts[0])
        known = shape in recorded._recorded
        made = own(packed, layouts, kv)
        if made is not None and known:
            repeated.append(shape)
            expected = runner.decoder.forward(packed.ids, layouts, kv, packed.logit_rows)
            if not torch.equal(made, expected):
                wrong.append(shape)
        return made

    recorded.logits = logits
    return repeated, wrong


@pytest.mark.parametrize("arch", ["qwen3", "llama"])
def test_chunks_beside_rows_are_recorded_with_them(tmp_path, monkeypatch, arch):
    """Contexts outgrow the first recordings meanwhile."""
    monkeypatch.setattr(passes, "_ROOM", 1)
    with Engine("cpu", kv_budget_bytes=8 << 20, speculation="off", max_prefill_tokens=8) as engine:
        model = engine.load(make_tiny(tmp_path / "tiny.gguf", arch, **SHAPE))
        repeated, wrong = compared(engine, model)
        rows = [model.submit(Request((20 + i,), GREEDY, max_tokens=500, ignore_eog=True)) for i in range(3)]
        for start in (0, 7):
            prompt = tuple(20 + (start + i) % 200 for i in range(150))
            model.submit(Request(prompt, GREEDY, max_tokens=1)).result(60)
        for row in rows:
            row.cancel()
            row.result(60)
    assert any(shape.chunk and not shape.ends for shape in repeated) and not wrong


def test_passes_with_drafts_are_recorded(tmp_path):
    with Engine("cpu", kv_budget_bytes=8 << 20, speculation="auto") as engine:
        model = engine.load(make_tiny(tmp_path / "tiny.gguf", "llama", **SHAPE))
        repeated, wrong = compared(engine, model)
        for _ in range(3):
            answers(model, tokens=120)
    assert any(shape.tokens > shape.decode for shape in repeated) and not wrong


def test_what_was_not_used_for_longest_goes(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(recorded_passes, "MOST_KEPT", 1)
    model = engine.load(make_tiny(tmp_path / "tiny.gguf", "llama", **SHAPE))
    texts = answers(model, 3, 40)
    assert len(runner_of(engine, model).recorded._recorded) == 1
    assert answers(model, 3, 40) == texts


def test_several_rows_have_a_recording_of_their_own(engine, tmp_path, monkeypatch):
    path = make_tiny(tmp_path / "tiny.gguf", "llama", **SHAPE)
    model = engine.load(path)
    texts = answers(model, 3, 40)
    assert any(made(engine, model, rows) is not None for rows in (2, 3))
    monkeypatch.setattr(recorded_passes, "MOST_TOKENS", 0)
    assert answers(model, 3, 40) == texts


def test_a_context_that_outgrows_its_room_is_recorded_again(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(passes, "_ROOM", 1)
    model = engine.load(make_tiny(tmp_path / "tiny.gguf", "llama", **SHAPE))
    text = answers(model, tokens=100)
    assert made(engine, model)._prepared[0].decode.tables.shape[1] == 4
    monkeypatch.setattr(recorded_passes, "MOST_TOKENS", 0)
    assert answers(model, tokens=100) == text


def test_where_torch_computes_between_kernels_nothing_is_recorded(engine, tmp_path):
    model = engine.load(make_tiny(tmp_path / "tiny.gguf", "llama", **{**SHAPE, "quant": "F32"}))
    assert answers(model)
    assert made(engine, model) is None


def test_nothing_large_is_kept(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(passes, "MOST_BYTES", 100)
    model = engine.load(make_tiny(tmp_path / "tiny.gguf", "llama", **SHAPE))
    assert answers(model) and made(engine, model) is None


def test_a_recording_that_gives_something_else_is_dropped(engine, tmp_path, monkeypatch, caplog):
    path = make_tiny(tmp_path / "tiny.gguf", "llama", **SHAPE)
    monkeypatch.setattr(passes, "_refill", lambda own, layout: True)
    model = engine.load(path)
    text = answers(model)
    assert made(engine, model) is None and "gives other logits" in caplog.text
    monkeypatch.setattr(recorded_passes, "MOST_TOKENS", 0)
    assert answers(engine.load(path)) == text


def test_recording_imports_no_compiler():
    """Which takes seconds, and fails beside another thread's import."""
    code = (
        "import sys, torch\n"
        "from kernels.cpu.scratch import Scratch, Watch\n"
        "with Watch(Scratch(1000)):\n"
        "    torch.empty(1)\n"
        "print('torch._dynamo' in sys.modules)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"
