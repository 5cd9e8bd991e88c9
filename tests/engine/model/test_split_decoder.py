"""A decoder of which another device computes a part gives what the whole one gives (float32)."""

import numpy as np
import pytest
from torch import Tensor

from engine.model.split.placement import Placement
from tests.support.family_goldens import FamilyGolden
from tests.support.passes import Passes, load_decoder, load_split

STEPS = 2
"""`tests/engine/test_split_models.py` has long answers."""
TOLERANCE = 2e-5
"""Chunks and whole prompts are summed up otherwise."""
CASES = {
    "a layer and the others' experts": ("qwen3moe", Placement(layers=1, experts=99)),
    "beside a shared expert": ("glm4moe", Placement(experts=1)),
    "router with norms of its own": ("gemma4-moe", Placement(experts=99)),
    "windows": ("gemma3", Placement(layers=1)),
    "sinks and biases": ("gpt-oss", Placement(layers=1, experts=99)),
}


@pytest.fixture(params=CASES, scope="module")
def decoders(request, tmp_path_factory):
    name, placement = CASES[request.param]
    path = FamilyGolden.load(name).write_model(tmp_path_factory.mktemp("models"))
    return load_decoder(path), load_split(path, placement)


def prompts(decoder, *lengths: int) -> dict[str, list[int]]:
    rng = np.random.default_rng(11)
    return {
        f"s{i}": rng.integers(10, decoder.config.vocab_size, length).tolist()
        for i, length in enumerate(lengths)
    }


def assert_close(ours: Tensor, expected: Tensor) -> None:
    assert float((ours - expected).norm() / expected.norm()) <= TOLERANCE


def test_prompts_packed_and_in_chunks_and_what_follows(decoders):
    whole, split = decoders
    sequences = prompts(whole, 33, 3, 12)
    one, other = Passes(whole, dict(sequences)), Passes(split, dict(sequences))
    one.run(*((name, len(ids)) for name, ids in sequences.items()))
    other.run(("s0", 7), ("s1", 2))
    other.run(("s1", 1), ("s0", 26), ("s2", 11))
    assert_close(other.logits["s0"], one.logits["s0"])
    assert_close(other.logits["s1"], one.logits["s1"])
    other.run(("s2", 1))
    assert_close(other.logits["s2"], one.logits["s2"])
    assert other.greedy("s0", "s2", steps=STEPS) == one.greedy("s0", "s2", steps=STEPS)


def test_each_part_has_its_layers_alone(decoders):
    whole, split = decoders
    first = split.placement.layers
    assert list(split._host.layers) == list(range(first))
    assert list(split._device.layers) == list(range(first, len(whole.weights.layers)))
