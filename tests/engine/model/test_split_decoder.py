"""A decoder of which another device computes a part gives what the whole one gives (float32)."""

import numpy as np
import pytest

from engine.model.placement import Placement
from tests.support.family_goldens import FamilyGolden
from tests.support.passes import Passes, assert_same_logits, load_decoder, load_split

STEPS = 32
CASES = {
    "one layer": ("llama", Placement(layers=1)),
    "all but one": ("qwen3vl", Placement(layers=1)),
    "experts of one layer": ("qwen3moe", Placement(experts=1)),
    "all experts": ("qwen3moe", Placement(experts=99)),
    "a layer and the others' experts": ("qwen3moe", Placement(layers=1, experts=99)),
    "beside a shared expert": ("glm4moe", Placement(experts=1)),
    "router with norms of its own": ("gemma4-moe", Placement(experts=99)),
    "windows": ("gemma3", Placement(layers=1)),
    "sinks and biases": ("gpt-oss", Placement(layers=1, experts=99)),
    "in parallel": ("cohere2", Placement(layers=1)),
    "scaled": ("granitemoe", Placement(experts=1)),
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


def test_a_prompt_and_what_follows(decoders):
    tokens = prompts(decoders[0], 45)["s0"]
    answers = []
    passes = [Passes(decoder, {"a": list(tokens)}) for decoder in decoders]
    for one in passes:
        one.run(("a", 45))
    assert_same_logits(passes[1].logits["a"], passes[0].logits["a"])
    for one in passes:
        answers.append(one.greedy("a", steps=STEPS)["a"])
    assert answers[0] == answers[1]


def test_packed_and_in_chunks(decoders):
    whole, split = decoders
    sequences = prompts(whole, 40, 3, 25)
    one, other = Passes(whole, dict(sequences)), Passes(split, dict(sequences))
    one.run(*((name, len(ids)) for name, ids in sequences.items()))
    other.run(("s0", 7), ("s1", 2))
    other.run(("s1", 1), ("s0", 33), ("s2", 24))
    assert_same_logits(other.logits["s0"], one.logits["s0"])
    assert_same_logits(other.logits["s1"], one.logits["s1"])
    other.run(("s2", 1))
    assert_same_logits(other.logits["s2"], one.logits["s2"])


def test_each_part_has_its_layers_alone(decoders):
    whole, split = decoders
    first = split.placement.layers
    assert list(split._host.layers) == list(range(first))
    assert list(split._device.layers) == list(range(first, len(whole.weights.layers)))
