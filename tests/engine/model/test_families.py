"""Every architecture against Hugging Face transformers, on tiny models that llama.cpp's converter wrote."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader

from engine.api.errors import EngineError
from engine.api.request import Request, SamplingParams
from engine.engine import Engine
from engine.model.decoder import Decoder
from engine.model.families import FAMILIES as ARCHITECTURES
from kernels.cpu.operations import CPUOperations
from kernels.reference.operations import TorchOperations
from tests.support.family_goldens import FamilyGolden, all_families, changed_copy
from tests.support.goldens import nmse
from tests.support.passes import BLOCK_SIZE, Passes, load_decoder

NMSE_LIMIT = 1e-8
COVERED_ELSEWHERE = {"llama", "qwen2", "qwen3"}
"""`test_logits_golden` compares these with llama.cpp."""
CHUNKS = (1, 9, 15, 15, 8)
"""Each ends at a position whose logits are known; none at a block's end."""
AFTER_HIT = 24
"""Greedy tokens asked for when a prompt is sent a second time."""

FAMILIES = [golden for golden in all_families() if golden.architecture in ARCHITECTURES]
MODELS: dict[str, Path] = {}


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda golden: golden.name)
def golden(request, tmp_path_factory) -> FamilyGolden:
    found: FamilyGolden = request.param
    MODELS[found.name] = found.write_model(tmp_path_factory.mktemp("family"))
    return found


@pytest.fixture(scope="module")
def decoder(golden: FamilyGolden) -> Decoder:
    return load_decoder(
        MODELS[golden.name], CPUOperations(torch.device("cpu"), "float32", "float32", BLOCK_SIZE)
    )


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine("cpu", kv_dtype="float32", weight_dtype="float32", threads=1, debug=True) as engine:
        yield engine


def check(golden: FamilyGolden, position: int, ours: torch.Tensor) -> None:
    """The logits after the prompt's tokens up to `position`."""
    assert nmse(ours.numpy(), golden.expected[position]) <= NMSE_LIMIT, f"{golden.name}, position {position}"


def read(passes: Passes, golden: FamilyGolden, name: str, count: int) -> None:
    passes.run((name, count))
    check(golden, passes.computed[name] - 1, passes.logits[name])


def test_every_architecture_has_a_fixture():
    assert ARCHITECTURES.keys() - COVERED_ELSEWHERE <= {golden.architecture for golden in FAMILIES}


def test_chunks(golden: FamilyGolden, decoder: Decoder):
    passes = Passes(decoder, {"a": golden.tokens})
    for count in CHUNKS:
        read(passes, golden, "a", count)
    assert passes.computed["a"] == len(golden.tokens)


def test_packed_prompts_of_different_lengths(golden: FamilyGolden, decoder: Decoder):
    lengths = {"a": 31, "b": len(golden.tokens), "c": 7}
    passes = Passes(decoder, {name: golden.tokens[:length] for name, length in lengths.items()})
    passes.run(*lengths.items())
    for name, length in lengths.items():
        check(golden, length - 1, passes.logits[name])


@pytest.mark.parametrize("kind", [CPUOperations, TorchOperations])
def test_decode_beside_a_prompt_that_is_being_read(golden: FamilyGolden, decoder: Decoder, kind):
    if kind is not CPUOperations:
        decoder = load_decoder(
            MODELS[golden.name], kind(torch.device("cpu"), "float32", "float32", BLOCK_SIZE)
        )
    passes = Passes(decoder, {"a": golden.tokens, "b": golden.tokens})
    passes.run(("a", 25))
    for count in (4, 3, 12):
        passes.run(("a", 1), ("b", count))
    check(golden, 18, passes.logits["b"])
    while passes.computed["a"] < len(golden.tokens):
        passes.run(("a", 1))
        if passes.computed["a"] - 1 in golden.expected:
            check(golden, passes.computed["a"] - 1, passes.logits["a"])


def test_greedy_in_the_engine(golden: FamilyGolden, engine: Engine):
    """All positions of one pass, then the answer, then the same prompt with its blocks shared."""
    model = engine.load(MODELS[golden.name])
    try:
        ours = model.logits(golden.tokens)
        rows = list(golden.expected)
        assert nmse(ours[rows].numpy(), np.stack([golden.expected[row] for row in rows])) <= NMSE_LIMIT
        for count in (len(golden.greedy), AFTER_HIT):
            request = Request(
                tuple(golden.tokens), SamplingParams(temperature=0.0), max_tokens=count, ignore_eog=True
            )
            events = list(model.submit(request).events())
            ids = [token for event in events for token in getattr(event, "token_ids", ())]
            assert ids == golden.greedy[:count]
        assert events[-1].cached_tokens > 0
    finally:
        model.unload()


REFUSED = ("llama", "qwen3moe", "gemma2", "gemma4-moe", "glm4moe", "phi3-longrope", "gpt-oss")
KEYS = ("block_count", "embedding_length", "attention.head_count", "context_length", "feed_forward_length")
OPTIONAL = ("output.weight", "rope_freqs", ".bias", "layer_output_scale")


def damaged(golden: FamilyGolden, folder: Path) -> Iterator[tuple[str, Path]]:
    """(what is wrong, file) for each tensor and for keys that nothing can replace."""
    source = golden.write_model(folder)
    target = folder / "damaged.gguf"
    first = [
        tensor.name
        for tensor in GGUFReader(str(source)).tensors
        if "blk." not in tensor.name or ".0." in tensor.name
    ]
    for name in first:
        if not any(part in name for part in OPTIONAL):
            yield name, changed_copy(source, target, without=name)
        yield name, changed_copy(source, target, halved=name)
    for key in KEYS:
        name = f"{golden.architecture}.{key}"
        yield name, changed_copy(source, target, without=name)


@pytest.mark.parametrize(
    "golden", [golden for golden in FAMILIES if golden.name in REFUSED], ids=lambda golden: golden.name
)
def test_a_damaged_file_is_refused_by_name(golden: FamilyGolden, tmp_path: Path):
    for name, path in damaged(golden, tmp_path):
        with pytest.raises(EngineError) as caught:
            load_decoder(path)
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)
