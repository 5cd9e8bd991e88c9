"""A whole model on the kernels: right logits, and passes that may be packed, cut, batched and queued.

On a machine without a GPU the kernels are interpreted and queued work runs at once.
"""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

import engine.core.device_choice as facade
from app.models.builtin import builtin_model_path
from engine.api.constraint import Constraint, ConstraintKind
from engine.api.request import Request, SamplingParams, TextDelta
from engine.engine import Engine
from engine.runner import apart, cuda_graph, graph_runner
from engine.scheduler.config import TICK_FACTOR
from kernels.triton_operations import TritonOperations
from tests.support.goldens import nmse
from tests.support.tiny_gguf import make_tiny

GREEDY = SamplingParams(temperature=0.0)
NMSE_LIMIT = 1e-5


@pytest.fixture(scope="module")
def gpu_engine(device) -> Iterator[Engine]:
    with pytest.MonkeyPatch.context() as patch:
        # Of this engine alone: the plain one, made later, must not get them.
        patch.setattr(facade, "operations_for", lambda *_: TritonOperations(torch.device(device), "auto"))
        engine = Engine("cpu", kv_budget_bytes=64 << 20, debug=True)
    with pytest.MonkeyPatch.context() as patch, engine:
        if device == "cpu":
            # The interpreter computes padding one program at a time.
            for name, sizes in (("PASS_TOKENS", (8, 16, 64)), ("MIXED_ROWS", (0, 3)), ("CHUNKS", (2, 4))):
                patch.setattr(cuda_graph, name, sizes)
            patch.setattr(graph_runner, "FIRST_SIZES", ())
            patch.setattr(graph_runner, "WARM_SIZES", ())
        yield engine


@pytest.mark.parametrize(("named", "limits"), [(None, (TICK_FACTOR, 8.0)), (3.0, (3.0, 8.0))])
def test_how_long_a_tick_may_be_is_what_was_asked_for(device, named, limits, monkeypatch):
    monkeypatch.setattr(facade, "operations_for", lambda *_: TritonOperations(torch.device(device), "auto"))
    with Engine("cpu", tick_factor=named, kv_budget_bytes=64 << 20) as engine:
        config = engine._loop.scheduler.config
        assert (config.tick_factor, config.tick_extra_ms) == limits


@pytest.fixture(scope="module")
def plain_engine() -> Iterator[Engine]:
    with Engine("cpu", weight_dtype="float32", kv_dtype="float32", kv_budget_bytes=64 << 20) as engine:
        assert not isinstance(engine._ops, TritonOperations)
        yield engine


def logits(engine: Engine, path, ids: list[int]) -> np.ndarray:
    model = engine.load(path)
    try:
        return model.logits(ids).numpy()
    finally:
        model.unload()


@pytest.mark.parametrize(
    ("architecture", "quant"),
    [
        ("llama", "Q4_K_M"),
        ("qwen2", "Q5_0"),
        ("qwen3", "Q6_K"),
        ("qwen3", "Q8_0"),
        ("qwen3", "IQ2_XXS"),
        ("llama", "IQ3_S"),
        ("qwen2", "TQ1_0"),
        ("qwen3", "NVFP4"),
        ("llama", "F32"),
        ("qwen2", "BF16"),
    ],
)
def test_logits_are_those_of_float32(architecture, quant, gpu_engine, plain_engine, tmp_path, full):
    sizes = {} if full else {"layers": 1, "ffn": 256, "kv_heads": 1}
    path = make_tiny(tmp_path / "tiny.gguf", architecture, quant=quant, seed=5, **sizes)
    ids = np.random.default_rng(2).integers(10, 300, 40 if full else 5).tolist()
    assert nmse(logits(gpu_engine, path, ids), logits(plain_engine, path, ids)) <= NMSE_LIMIT


@pytest.mark.parametrize(("head_dim", "kv_dtype"), [(100, "float16"), (8, "float32"), (48, "q8_0")])
def test_heads_of_odd_sizes(head_dim, kv_dtype, gpu_engine, plain_engine, tmp_path, monkeypatch):
    path = make_tiny(tmp_path / "odd.gguf", "qwen3", layers=1, width=32, ffn=32, heads=2, head_dim=head_dim)
    monkeypatch.setattr(gpu_engine._ops, "kv_choices", (kv_dtype,))
    expected = logits(plain_engine, path, [20, 21])
    assert nmse(logits(gpu_engine, path, [20, 21]), expected) <= (1e-3 if kv_dtype == "q8_0" else NMSE_LIMIT)


@pytest.fixture(scope="module")
def path(full, tmp_path_factory):
    """The built-in model, or one that an interpreter can run."""
    if full:
        return builtin_model_path()
    sizes = {"width": 64, "ffn": 64, "heads": 2, "kv_heads": 1, "head_dim": 32}
    return make_tiny(tmp_path_factory.mktemp("model") / "tiny.gguf", "qwen3", quant="F16", seed=5, **sizes)


def test_every_size_of_pass(gpu_engine, plain_engine, path, full):
    """One prompt by the kernel of few rows, one by that of a chunk, one by that of a whole prompt."""
    for count in (5, 40, 300, 1500) if full else (36,):
        ids = np.random.default_rng(count).integers(10, 300, count).tolist()
        assert nmse(logits(gpu_engine, path, ids), logits(plain_engine, path, ids)) <= NMSE_LIMIT


def test_answers_of_many_tabs_are_those_of_each_alone(gpu_engine, plain_engine, path, full):
    """Packed, cut and queued passes give each tab its own text."""
    new = 200 if full else 2
    model, plain = gpu_engine.load(path), plain_engine.load(path)
    prompts = [tuple(range(20 + i, 26 + 3 * i)) for i in range(8 if full else 2)]
    if full:
        texts = ("Once upon a time", "The sun is", "A dog and a cat", "Water is", "My friend said")
        prompts = [tuple(model.tokenizer.encode(text)) for text in texts]
    requests = [Request(ids, GREEDY, max_tokens=new, ignore_eog=True) for ids in prompts]
    together = [answer.result(300) for answer in [model.submit(request) for request in requests]]
    assert [end.completion_tokens for _, end in together] == [new] * len(prompts)
    # Over a long text float16 activations meet a near tie with float32 sooner or later.
    reference = model if full else plain
    alone = [reference.submit(request).result(300)[0] for request in requests]
    assert [text for text, _ in together] == alone


def test_a_drawn_answer_is_that_of_the_cpu(gpu_engine, plain_engine, path, full):
    if not full:
        pytest.skip("the interpreter is slow; the sampler has tests of its own")
    params = SamplingParams(temperature=0.8, top_k=40, top_p=0.9, repetition_penalty=1.1, seed=11)
    request = Request((20, 21, 22), params, max_tokens=30)
    texts = [engine.load(path).submit(request).result(300)[0] for engine in (gpu_engine, plain_engine)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("broken", ["launch", "collect"])
def test_queued_ticks_that_fail_are_run_again(gpu_engine, path, full, monkeypatch, broken):
    """Ticks in flight are dropped with the one that failed; the texts stay."""
    if not full:
        pytest.skip("the interpreter is slow; the queue has tests of its own on a simulated device")
    new = 40
    model = gpu_engine.load(path)
    requests = [
        Request(tuple(range(20 + i, 26 + i)), GREEDY, max_tokens=new, ignore_eog=True) for i in (0, 9)
    ]
    expected = [answer.result(300)[0] for answer in [model.submit(request) for request in requests]]
    loop, calls = gpu_engine._loop, []
    runner = loop.call(lambda: loop.models.get(model._key).runner)
    real = getattr(runner, broken)

    def once(*args):
        calls.append(broken)
        if len(calls) == 2:
            raise RuntimeError("a cosmic ray")
        return real(*args)

    monkeypatch.setattr(runner, broken, once)
    assert [answer.result(300)[0] for answer in [model.submit(request) for request in requests]] == expected
    assert len(calls) > 2
    model.unload()


def test_rows_that_are_held_to_something_are_chosen_as_by_the_processor(
    gpu_engine, plain_engine, tmp_path, monkeypatch
):
    """Masks that come late hold their row for a tick, at its prompt's end and later; nobody else's."""
    path = make_tiny(tmp_path / "one.gguf", "qwen3", quant="F16", seed=5, layers=1, width=32, ffn=32, heads=2)
    digits = Constraint(ConstraintKind.REGEX, "[0-9]{5}")
    biased = SamplingParams(temperature=0.0, logit_bias={70: 0.5})
    requests = [
        Request((20, 21, 22), GREEDY, max_tokens=3, ignore_eog=True),
        Request((30, 31), biased, constraint=digits, top_logprobs=2),
    ]
    late = iter((True, False, True))
    usual = apart.wait_for_masks

    def wait(sequences, busy):
        masked = {one.sequence_id for one in sequences if one.matcher is not None}
        return usual(sequences, lambda: True) | (masked if masked and next(late, False) else set())

    monkeypatch.setattr(apart, "wait_for_masks", wait)
    told = []
    for engine in (gpu_engine, plain_engine):
        model = engine.load(path)
        for answer in [model.submit(request) for request in requests]:
            events = [event for event in answer.events() if isinstance(event, TextDelta)]
            assert answer.finished.error is None
            told.append(("".join(event.text for event in events), [event.logprobs for event in events]))
    (free, _), (held, mine), (free_plain, _), (held_plain, theirs) = told
    assert (free, held) == (free_plain, held_plain) and held.isdigit() and len(held) == 5
    for one, other in zip(mine, theirs, strict=True):
        values = [pair[1] for pair in other.top]
        assert one.logprob == pytest.approx(other.logprob, abs=0.02)
        assert [pair[1] for pair in one.top] == pytest.approx(values, abs=0.02)
