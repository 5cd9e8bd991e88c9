"""Packing, chunking, batching and prefix hits change nothing (float32)."""

from pathlib import Path

import numpy as np
import pytest
import torch

from engine.api.request import Request, SamplingParams
from engine.engine import Engine
from engine.model.decoder import Decoder
from kernels.contract import Operations
from kernels.cpu.operations import CPUOperations
from kernels.reference.operations import TorchOperations
from kernels.select import CPU_BLOCK_SIZE as BLOCK_SIZE
from tests.support.passes import Passes, assert_same_logits, load_decoder
from tests.support.shallow_model import make_shallow
from tests.support.tiny_gguf import make_tiny

GREEDY = SamplingParams(temperature=0.0)
STEPS = 24


@pytest.fixture(scope="module", params=["compiled", "torch"])
def operations(request) -> Operations:
    kind = {"compiled": CPUOperations, "torch": TorchOperations}[request.param]
    return kind(torch.device("cpu"), "float32", "float32", BLOCK_SIZE)


@pytest.fixture(scope="module")
def shallow(tmp_path_factory) -> Path:
    return make_shallow(tmp_path_factory.mktemp("shallow") / "shallow.gguf", layers=3)


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3", "built-in"])
def decoder(request, operations: Operations, shallow: Path, tmp_path_factory) -> Decoder:
    if request.param == "built-in":
        return load_decoder(shallow, operations)
    folder = tmp_path_factory.mktemp("models")
    path = make_tiny(folder / "tiny.gguf", request.param, quant="Q5_K_M", seed=3)
    return load_decoder(path, operations)


def prompts(decoder: Decoder, *lengths: int) -> dict[str, list[int]]:
    rng = np.random.default_rng(11)
    vocab = decoder.config.vocab_size
    return {f"s{i}": rng.integers(10, vocab, length).tolist() for i, length in enumerate(lengths)}


def alone(decoder: Decoder, tokens: list[int], steps: int = 0) -> tuple[torch.Tensor, list[int]]:
    """Logits after one whole prompt read by itself in fresh blocks, and its greedy continuation."""
    passes = Passes(decoder, {"a": list(tokens)}, scattered=False)
    passes.run(("a", len(tokens)))
    logits = passes.logits["a"]
    return logits, passes.greedy("a", steps=steps)["a"] if steps else []


def test_packed_prefill_equals_alone(decoder: Decoder):
    sequences = prompts(decoder, 45, 1, 70, 32, 3)
    passes = Passes(decoder, dict(sequences))
    passes.run(*((name, len(ids)) for name, ids in sequences.items()))
    for name, ids in sequences.items():
        assert_same_logits(passes.logits[name], alone(decoder, ids)[0])


@pytest.mark.parametrize("chunk", [1, 7, 32, 50])
def test_chunked_prefill_equals_whole(decoder: Decoder, chunk: int):
    sequences = prompts(decoder, min(100, 36 * chunk))
    ids = sequences["s0"]
    passes = Passes(decoder, dict(sequences))
    for start in range(0, len(ids), chunk):
        passes.run(("s0", min(chunk, len(ids) - start)))
    assert_same_logits(passes.logits["s0"], alone(decoder, ids)[0])


def test_chunked_prefill_equals_whole_while_a_shorter_prompt_finishes(decoder: Decoder):
    sequences = prompts(decoder, 120, 40)
    long, short = sequences["s0"], sequences["s1"]
    passes = Passes(decoder, dict(sequences))
    passes.run(("s0", 30), ("s1", 25))
    passes.run(("s0", 30), ("s1", 15))
    assert_same_logits(passes.logits["s1"], alone(decoder, short)[0])
    expected = alone(decoder, short, steps=4)[1]
    answer = []
    for chunk in (20, 20, 10, 10):
        token = int(passes.logits["s1"].argmax())
        answer.append(token)
        passes.tokens["s1"] = [*passes.tokens["s1"], token]
        passes.run(("s1", 1), ("s0", chunk))
    assert answer == expected
    assert_same_logits(passes.logits["s0"], alone(decoder, long)[0])
    assert 30 % BLOCK_SIZE != 0, "a chunk must cross a block border"


def test_packed_prefill_then_batched_decode_equals_alone(decoder: Decoder):
    sequences = prompts(decoder, 60, 9, 33, 200)
    passes = Passes(decoder, dict(sequences))
    passes.run(*((name, len(ids)) for name, ids in sequences.items()))
    answers = passes.greedy(*sequences, steps=STEPS)
    for name, ids in sequences.items():
        _, expected = alone(decoder, ids, STEPS)
        assert answers[name] == expected
    lone = Passes(decoder, {"s3": passes.tokens["s3"]}, scattered=False)
    lone.run(("s3", len(passes.tokens["s3"])))
    assert_same_logits(passes.logits["s3"], lone.logits["s3"])


def test_prefix_hit_equals_recomputed(decoder: Decoder):
    sequences = prompts(decoder, 96, 96)
    shared = sequences["s0"][:64]
    sequences["s1"] = shared + sequences["s1"][64:]
    passes = Passes(decoder, dict(sequences))
    passes.run(("s0", 96))
    passes.tables["s1"][:2] = passes.tables["s0"][:2]
    passes.computed["s1"] = 64
    passes.run(("s1", 32))
    assert_same_logits(passes.logits["s1"], alone(decoder, sequences["s1"])[0])


@pytest.fixture(scope="module")
def engine():
    exact = {"weight_dtype": "float32", "kv_dtype": "float32"}
    with Engine("cpu", kv_budget_bytes=64 << 20, debug=True, **exact) as engine:
        yield engine


def greedy_text(model, prompt: str, tokens: int = 40) -> tuple[str, int]:
    ids = tuple(model.tokenizer.encode(prompt))
    request = Request(ids, GREEDY, max_tokens=tokens, ignore_eog=True)
    text, end = model.submit(request).result(60)
    return text, end.cached_tokens


def test_prefix_hit_equals_recomputed_in_the_engine(engine: Engine, shallow: Path):
    model = engine.load(shallow)
    prompt = "Once upon a time there was a little fox who lived in the woods with her mother. " * 4
    first, cached_first = greedy_text(model, prompt)
    second, cached_second = greedy_text(model, prompt)
    assert (cached_first, first) == (0, second)
    assert cached_second >= 64
    model.unload()


def test_eight_requests_together_answer_as_alone(engine: Engine, shallow: Path):
    model = engine.load(shallow)
    texts = [f"Tell me a story about number {i}, please. " + "And then? " * i for i in range(8)]
    requests = [
        Request(tuple(model.tokenizer.encode(t)), GREEDY, max_tokens=30, ignore_eog=True) for t in texts
    ]
    together = [g.result(120)[0] for g in [model.submit(r) for r in requests]]
    model.unload()
    model = engine.load(shallow)
    apart = [model.submit(r).result(120)[0] for r in requests]
    assert together == apart
    model.unload()
