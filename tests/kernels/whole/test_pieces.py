"""A whole model of which torch computes what no kernel serves: loaded, answered with, and told."""

import logging
import re
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from triton.runtime.errors import OutOfResources

import engine.core.device_choice as facade
from engine.api.errors import UnsupportedModelError
from engine.api.request import Request, SamplingParams
from engine.core import split_loader
from engine.engine import Engine
from engine.runner import cuda_graph, graph_runner
from engine.runner.cuda_graph import PassSize
from kernels import select, triton_operations
from kernels.cuda import launchers
from kernels.pieces.operations import PieceOperations
from kernels.reference.operations import TorchOperations
from tests.support.device_like import float32_host
from tests.support.goldens import nmse
from tests.support.tiny_gguf import make_tiny

SMALL = {"layers": 1, "width": 32, "ffn": 32, "heads": 2, "kv_heads": 1}
LONG = 576
PROMPT = tuple(np.random.default_rng(2).integers(10, 300, 5).tolist())
GREEDY = Request(PROMPT, SamplingParams(temperature=0.0), max_tokens=2, ignore_eog=True)


REASON = "its kernel needs 120000 of shared memory, this device has 101376"


def refuse(*_args, **_options):
    raise OutOfResources(120_000, 101_376, "shared memory")


def make_engine(device: str, host_layers: int | str = "never", **options) -> Engine:
    with pytest.MonkeyPatch.context() as patch:
        ops = PieceOperations(torch.device(device), "auto", **options)
        patch.setattr(facade, "operations_for", lambda *_: ops)
        return Engine("cpu", kv_budget_bytes=64 << 20, debug=True, host_layers=host_layers)


@pytest.fixture(autouse=True)
def small_passes(monkeypatch, device):
    if device == "cpu":
        # The interpreter computes padding one program at a time.
        for name, sizes in (("PASS_TOKENS", (8, 16, 64)), ("MIXED_ROWS", (0, 3)), ("CHUNKS", (2, 4))):
            monkeypatch.setattr(cuda_graph, name, sizes)
        monkeypatch.setattr(graph_runner, "FIRST_SIZES", (PassSize(1, 0, 1),))
        monkeypatch.setattr(graph_runner, "WARM_SIZES", ())


@pytest.fixture
def gpu_engine(device) -> Iterator[Engine]:
    with make_engine(device) as engine:
        yield engine


@pytest.fixture(scope="module")
def plain_engine() -> Iterator[Engine]:
    with Engine("cpu", weight_dtype="float32", kv_dtype="float32", kv_budget_bytes=64 << 20) as engine:
        yield engine


def told(engine: Engine) -> tuple[str, ...]:
    """Of the one model that is loaded."""
    (model,) = engine.stats().models
    return model.by_torch


def runner_of(engine: Engine, model):
    return engine._loop.call(lambda: engine._loop.models.get(model._key).runner)


def assert_same_as_plain(model, plain_engine, path):
    plain = plain_engine.load(path)
    try:
        assert nmse(model.logits(list(PROMPT)).numpy(), plain.logits(list(PROMPT)).numpy()) <= 1e-5
        assert model.submit(GREEDY).result(300)[0] == plain.submit(GREEDY).result(300)[0]
    finally:
        plain.unload()


def test_of_a_model_that_kernels_serve_nothing_is_told(gpu_engine, tmp_path):
    model = gpu_engine.load(make_tiny(tmp_path / "served.gguf", "qwen3", head_dim=16, **SMALL))
    assert told(gpu_engine) == () and gpu_engine.stats().slower == ()
    assert runner_of(gpu_engine, model)._ops.captures(prompts=True)


def test_heads_that_no_kernel_serves_are_torchs(gpu_engine, plain_engine, tmp_path):
    path = make_tiny(tmp_path / "odd.gguf", "qwen3", head_dim=LONG, **SMALL)
    model = gpu_engine.load(path)
    assert_same_as_plain(model, plain_engine, path)
    (sentence,) = told(gpu_engine)
    assert sentence.startswith("torch computes attention of answers and attention of prompts (")
    assert sentence.endswith(" ms a token read): no kernel serves heads of 576, more than 512")
    assert gpu_engine.stats().slower == (f"odd: {sentence}",)
    runner = runner_of(gpu_engine, model)
    assert runner.replays == 0 and runner.eager_passes and not runner.compiling


def test_a_divided_model_tells_what_torch_takes_of_the_devices_layers(
    device, plain_engine, tmp_path, monkeypatch
):
    # Some processors hold weights of float32 in bfloat16, of their own accord.
    monkeypatch.setattr(split_loader, "host_operations", float32_host)
    path = make_tiny(tmp_path / "odd.gguf", "qwen3", head_dim=LONG, **SMALL | {"layers": 2})
    with make_engine(device, host_layers=1) as engine:
        model = engine.load(path)
        assert_same_as_plain(model, plain_engine, path)
        (sentence,) = told(engine)
    number = r"\(\S+ ms a token written, \S+ ms a token read\)"
    assert re.search(f"attention of answers and attention of prompts {number}: no kernel", sentence)


@pytest.mark.parametrize(
    ("kernel", "operation"),
    [
        ("attend_decode", "attention of answers"),
        ("attention_prefill", "attention of prompts"),
        ("apply_linear", "products with F32"),
        ("apply_gated", "products with F32"),
        ("add_norm", "norms"),
        ("embed_rows", "embedding in F32"),
    ],
)
def test_a_kernel_that_cannot_be_launched_is_replaced(
    gpu_engine, plain_engine, tmp_path, monkeypatch, caplog, kernel, operation
):
    monkeypatch.setattr(triton_operations, kernel, refuse)
    path = make_tiny(tmp_path / "served.gguf", "qwen3", head_dim=16, **SMALL)
    with caplog.at_level(logging.WARNING):
        model = gpu_engine.load(path)
    assert_same_as_plain(model, plain_engine, path)
    assert f"torch computes {operation}" in caplog.text
    # What only a prompt needs is found out by the first prompt.
    (sentence,) = runner_of(gpu_engine, model)._ops.by_torch
    assert sentence.startswith(f"torch computes {operation}")
    assert sentence.endswith(f": {REASON}")


def test_where_passes_cannot_be_queued_they_run_one_by_one(gpu_engine, plain_engine, tmp_path, monkeypatch):
    monkeypatch.setattr(graph_runner, "fill_pass", refuse)
    path = make_tiny(tmp_path / "served.gguf", "qwen3", head_dim=16, **SMALL)
    model = gpu_engine.load(path)
    assert_same_as_plain(model, plain_engine, path)
    (sentence,) = told(gpu_engine)
    assert sentence == f"torch computes the choice of tokens, pass by pass: {REASON}"
    assert gpu_engine.stats().models[0].kv_bytes_per_token > 0
    model.unload()


def test_what_only_kernels_can_do_is_refused_in_words(device, tmp_path, monkeypatch):
    monkeypatch.setattr(triton_operations, "add_norm", refuse)
    path = make_tiny(tmp_path / "served.gguf", "qwen3", head_dim=16, **SMALL)
    with (
        make_engine(device, batch_independent=True) as engine,
        pytest.raises(UnsupportedModelError, match=rf"served\.gguf: {REASON}; with weight_dtype"),
    ):
        engine.load(path)


def test_other_errors_are_no_reason_for_torch(device, tmp_path, monkeypatch):
    def fail(*_args, **_options):
        raise RuntimeError("a mistake")

    monkeypatch.setattr(triton_operations, "add_norm", fail)
    ops = PieceOperations(torch.device(device), "auto")
    with pytest.raises(RuntimeError, match="a mistake"):
        ops.add_norm(torch.zeros(1, 16, device=device), None, None)
    assert ops.by_torch == ()


def test_results_that_no_other_row_changes_are_never_torchs(device, tmp_path):
    with make_engine(device, batch_independent=True) as engine:
        path = make_tiny(tmp_path / "odd.gguf", "qwen3", head_dim=LONG, **SMALL)
        with pytest.raises(UnsupportedModelError, match=r"odd\.gguf: qwen3.*heads of 576.*weight_dtype"):
            engine.load(path)


class NoCompiler:
    """Triton's driver where nothing builds what launches kernels."""

    @property
    def active(self):
        raise RuntimeError("Failed to find C compiler")


@pytest.mark.parametrize(
    ("capability", "reason"),
    [
        ((7, 5), "the GPU has compute capability 7.5, at least 8.0 is needed"),
        ((8, 0), "launchers of kernels cannot be built: Failed to find C compiler"),
    ],
)
def test_on_other_cards_torch_computes_everything(monkeypatch, capability, reason):
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    monkeypatch.setattr(launchers, "driver", NoCompiler())
    ops = select.operations_for("cuda:0")
    assert type(ops) is TorchOperations
    assert ops.fallbacks == [f"every operation runs in torch: Triton cannot be used here ({reason})"]
