"""A model of which the processor computes a part, on the kernels, beside one that the device has all of.

On a machine without a GPU the kernels are interpreted; crossing over copies nothing then.
"""

import gc
import time
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import engine.core.device_choice as facade
from app.models.builtin import builtin_model_path
from engine.api.generation import Generation
from engine.api.request import Finished, Request, SamplingParams
from engine.engine import Engine, Model
from engine.runner.input_batch import InputBatch, whole_prompt
from engine.runner.split.split_runner import SplitRunner
from kernels.contract import PassLayout
from kernels.triton_operations import TritonOperations
from tests.support.family_goldens import FamilyGolden
from tests.support.goldens import nmse
from tests.support.tiny_gguf import make_tiny

GREEDY = SamplingParams(temperature=0.0)
NMSE_LIMIT = 1e-4
"""Of half of the positions."""
ROUTE_LIMIT = 2e-2
"""Of every position: now and then it may choose another expert."""
NEAR_TIE = 0.1
"""Logits that differ less may change places by the rounding of activations to float16."""


def engine_of(device: str, **options) -> Engine:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(facade, "operations_for", lambda *_: TritonOperations(torch.device(device), "auto"))
        options = {"kv_budget_bytes": 64 << 20, "debug": True} | options
        return Engine("cpu", **options)


@pytest.fixture(scope="module")
def engines(device, full) -> Iterator[tuple[Engine, Engine]]:
    """One that has everything on the device, or in float32 where that is interpreted; one that has not."""
    whole = (
        engine_of(device, host_layers="never")
        if full
        else Engine("cpu", weight_dtype="float32", kv_dtype="float32", kv_budget_bytes=64 << 20)
    )
    with whole, engine_of(device, host_layers=1) as split:
        yield whole, split


@pytest.fixture(scope="module", params=["dense", "experts"])
def path(request, full, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    if request.param == "experts":
        return FamilyGolden.load("qwen3moe").write_model(folder)
    if full:
        return builtin_model_path()
    sizes = {"width": 64, "ffn": 64, "heads": 2, "kv_heads": 1, "head_dim": 32}
    return make_tiny(folder / "tiny.gguf", "qwen3", quant="Q8_0", seed=5, **sizes)


def test_logits(engines, path, full):
    ids = np.random.default_rng(2).integers(10, 270, 100 if full else 6).tolist()
    whole, split = (engine.load(path) for engine in engines)
    try:
        assert split.info.placement and split.info.host_bytes and not whole.info.placement
        runner = engines[1]._loop.models.by_key[split.id].runner
        assert isinstance(runner, SplitRunner) and not runner.max_ahead and not runner.rest()
        pairs = zip(split.logits(ids).numpy(), whole.logits(ids).numpy(), strict=True)
        errors = sorted(nmse(ours, expected) for ours, expected in pairs)
        assert errors[len(errors) // 2] <= NMSE_LIMIT and errors[-1] <= ROUTE_LIMIT, errors
    finally:
        whole.unload()
        split.unload()


def test_captured_passes_are_those_launched_one_by_one(engines, path, full):
    """A few tokens that read each other, then a row behind them, twice each."""
    model = engines[1].load(path)
    try:
        runner = engines[1]._loop.models.by_key[model.id].runner
        steps, decoder, groups = runner._steps, runner._split, runner.kv.groups
        read = [20, 40, 60, 80, 100, 120][: None if full else 2]
        prompt = whole_prompt(read, runner.block_size, torch.device("cpu"))
        row = InputBatch(prompt.ids[-1:], [last_row(prompt.layouts[0])], [], torch.tensor([0]))
        with torch.inference_mode(), runner._stream.current():
            for pool in range(runner.kv.num_pools):
                runner.kv.back(pool, 2)
            for packed in (prompt, row):
                pools = packed.layouts * runner.kv.num_pools
                layouts = runner.kv.by_group(pools)
                expected = decoder.forward(packed.ids, layouts, groups, packed.logit_rows).clone()
                given = InputBatch(packed.ids, pools, [], packed.logit_rows)
                for _ in range(3 if full else 2):
                    logits = steps.run(given, lambda expected=expected: expected).cpu()
                    pairs = zip(logits.numpy(), expected.cpu().numpy(), strict=True)
                    errors = [nmse(*pair) for pair in pairs]
                    assert max(errors) <= ROUTE_LIMIT and min(errors) <= NMSE_LIMIT, errors
            assert list(steps._proved.values()) == [True, True]
    finally:
        model.unload()


def test_a_size_whose_logits_are_others_is_never_replayed(engines, path):
    model = engines[1].load(path)
    try:
        runner = engines[1]._loop.models.by_key[model.id].runner
        prompt = whole_prompt([20, 40], runner.block_size, torch.device("cpu"))
        given = InputBatch(prompt.ids, prompt.layouts * runner.kv.num_pools, [], prompt.logit_rows)
        with torch.inference_mode(), runner._stream.current():
            for pool in range(runner.kv.num_pools):
                runner.kv.back(pool, 2)
            others = -runner._launched(given).clone()
            for _ in range(3):
                assert torch.equal(runner._steps.run(given, lambda: others), others)
        assert list(runner._steps._proved.values()) == [False]
    finally:
        model.unload()


def test_an_unloaded_model_goes_at_once(engines, path):
    """Not when circles of references are looked for: it holds the memory of a device."""
    gc.disable()
    try:
        model = engines[1].load(path)
        model.submit(Request((20, 21, 22), GREEDY, max_tokens=1)).result(600)
        decoder = weakref.ref(engines[1]._loop.models.by_key[model.id].runner._split)
        model.unload()
        until = time.monotonic() + 60
        while decoder() is not None and time.monotonic() < until:
            time.sleep(0.001)
        assert decoder() is None
    finally:
        gc.enable()


def last_row(layout: PassLayout) -> PassLayout:
    """The last token of a prompt as a decode row."""
    return PassLayout(
        [1], layout.context_lens, layout.block_tables, 1, layout.positions[-1:], layout.slot_mapping[-1:]
    )


TEXTS = ("Once upon a time", "The sun is", "A dog and a cat", "Water is")
LONG = "The river runs past the old mill and the town. People come in spring to see the water rise. "


def prompts_of(model: Model, trained: bool) -> list[tuple[int, ...]]:
    """Texts for a trained model, else a few ids: random weights have near ties everywhere."""
    if not trained:
        return [(20, 21, 22), (30, 50, 70, 90, 31)]
    long = model.tokenizer.encode(LONG * 20)[:150]
    return [*(tuple(model.tokenizer.encode(text)) for text in TEXTS), tuple(long)]


def read(generation: Generation) -> tuple[list[int], Finished]:
    """The ids of an answer, and its end."""
    *events, end = generation.events()
    return [i for event in events for i in event.token_ids], end


def assert_greedy(model: Model, prompt: tuple[int, ...], answer: list[int]) -> None:
    """Every token of an answer is the best one, or as good but for rounding."""
    rows = model.logits([*prompt, *answer]).numpy()[len(prompt) - 1 : -1]
    assert len(rows) == len(answer)
    assert max(row.max() - row[token] for row, token in zip(rows, answer, strict=True)) <= NEAR_TIE


def test_answers_in_one_batch_and_after_a_prefix_hit(engines, path):
    trained = path == builtin_model_path()
    new = 32 if trained else 2
    whole, split = (engine.load(path) for engine in engines)
    try:
        prompts = prompts_of(whole, trained)
        requests = [Request(ids, GREEDY, max_tokens=new, ignore_eog=True) for ids in prompts]
        for prompt, (answer, end) in zip(
            prompts, map(read, [split.submit(request) for request in requests]), strict=True
        ):
            assert end.completion_tokens == new
            assert_greedy(whole, prompt, answer)
        if not trained:
            # No prompt fills a block.
            return
        again, end = read(split.submit(requests[-1]))
        assert end.cached_tokens == 128
        assert_greedy(whole, prompts[-1], again)
    finally:
        whole.unload()
        split.unload()
