"""Layers that are alike are looked at once, and one that is not is looked at by itself."""

import pytest
from gguf import GGUFReader

from engine import summarize
from engine.footprint.rules import weight_bytes
from engine.gguf.file import open_gguf
from engine.model.config import read_config
from engine.model.tensors import check_tensors
from tests.app.computer import CPU
from tests.support.family_goldens import FamilyGolden, changed_copy
from tests.support.passes import load_decoder
from tests.support.tiny_gguf import make_tiny


def kinds(path):
    with open_gguf(path) as file:
        return [(kind.index, kind.count) for kind in check_tensors(file, read_config(file)).kinds]


def test_layers_of_one_kind_are_one(tmp_path):
    assert kinds(make_tiny(tmp_path / "a.gguf", "llama", layers=4)) == [(0, 4)]
    # Every fourth has no rotation.
    assert kinds(make_tiny(tmp_path / "b.gguf", "smollm3", layers=8)) == [(0, 6), (3, 2)]


def test_memory_grows_by_a_layer_with_every_layer(tmp_path):
    paths = [make_tiny(tmp_path / f"{count}.gguf", "llama", layers=count) for count in (1, 2, 5)]
    one, two, five = (weight_bytes(summarize(path).footprint, CPU) for path in paths)
    assert five - two == 3 * (two - one)


@pytest.mark.parametrize(("change", "said"), [("without", "is missing"), ("halved", "shape")])
def test_the_one_layer_that_is_wrong_is_found(tmp_path, change, said):
    good = make_tiny(tmp_path / "good.gguf", "llama", layers=4)
    name = "blk.2.attn_output.weight"
    bad = changed_copy(GGUFReader(str(good)), tmp_path / "bad.gguf", **{change: name})
    assert name in summarize(bad).problem and said in summarize(bad).problem


@pytest.mark.parametrize(("family", "gated"), [("qwen3moe", False), ("muse-glimmer", True)])
def test_attention_knows_the_linear_behind_it_where_nothing_comes_between(tmp_path, family, gated):
    decoder = load_decoder(FamilyGolden.load(family).write_model(tmp_path))
    for layer in decoder.weights.layers:
        assert (layer.attn_gate is not None) == gated
        assert layer.attention.output is (None if gated else layer.attn_output)
