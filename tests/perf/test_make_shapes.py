"""The makers of test models: what they write is what llama.cpp's rules and the recipes say."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize

from tests.perf import make_shapes
from tests.support.tiny_blocks import TYPES, dequantised, random_tensor
from tests.support.tiny_gguf import dequantised_f32_copy, make_tiny, weights_hash


@pytest.mark.parametrize("type_name", TYPES)
def test_random_blocks_have_the_spread_asked_for(type_name: str):
    made = [random_tensor(np.random.default_rng(3), type_name, (64, 512), 0.05) for _ in range(2)]
    assert np.array_equal(made[0], made[1])
    values = dequantised(made[0], type_name)
    assert values.shape == (64, 512) and np.isfinite(values).all()
    assert 0.035 < values.std() < 0.07
    assert len(np.unique(values)) > 20


def test_a_copy_in_f32_has_the_same_weights_and_tokenizer(tmp_path):
    source = make_tiny(tmp_path / "a.gguf", "llama", quant="Q4_K_M", vocab="spm", vocab_size=448, rope="yarn")
    copy = dequantised_f32_copy(source, tmp_path / "b.gguf")
    assert weights_hash(copy) == weights_hash(source)
    kinds = {tensor.tensor_type.name for tensor in GGUFReader(str(source)).tensors}
    assert kinds == {"F32", "Q4_K", "Q6_K"}
    assert {tensor.tensor_type.name for tensor in GGUFReader(str(copy)).tensors} == {"F32"}
    ours, theirs = GGUFReader(str(source)).fields, GGUFReader(str(copy)).fields
    for name in ("tokenizer.ggml.tokens", "tokenizer.ggml.scores", "llama.rope.scaling.factor"):
        assert ours[name].contents() == theirs[name].contents()
        assert ours[name].types == theirs[name].types


def test_another_seed_makes_other_weights(tmp_path):
    first, second = (
        weights_hash(make_tiny(tmp_path / f"{seed}.gguf", "qwen3", seed=seed)) for seed in (1, 2)
    )
    assert first != second


@pytest.mark.parametrize("quant", make_shapes.QUANTS)
def test_real_size_maker_on_a_small_shapes(quant: str, tmp_path, monkeypatch):
    small = replace(make_shapes.SHAPES["qwen3-0.6b"], layers=8, width=256, ffn=512, heads=2, kv_heads=1)
    monkeypatch.setitem(make_shapes.SHAPES, "small", replace(small, vocab_size=2048))
    monkeypatch.setattr(make_shapes, "POOL", 1 << 14)
    reader = GGUFReader(str(make_shapes.make_shapes(tmp_path / "a.gguf", "small", quant)))
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    better = make_shapes.QUANTS[quant][1]
    wanted = [0, 3, 6, 7] if quant.endswith("_k_m") else list(range(8))
    assert [layer for layer in range(8) if kinds[f"blk.{layer}.ffn_down.weight"] == better] == wanted
    assert kinds["token_embd.weight"] == better
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        assert values.shape == tuple(reversed(tensor.shape.tolist()))
        assert np.isfinite(values).all() and 0 < np.abs(values).max() < 10


def test_qwen3_shapes_give_the_mix_of_a_real_file():
    shapes = make_shapes.SHAPES["qwen3-0.6b"]
    sizes: Counter[str] = Counter()
    bits = {"Q4_K": 4.5, "Q6_K": 6.5625}
    for name, layer, rows, cols in make_shapes.matrices(shapes):
        kind = make_shapes.tensor_type(name, layer, shapes, "q4_k_m")
        sizes[kind] += round(rows * cols * bits[kind] / 8)
    assert sizes["Q6_K"] / sizes.total() == pytest.approx(0.45, abs=0.01)
    assert sizes.total() == pytest.approx(0.36 * 2**30, rel=0.03)


def test_wide_vocabulary_is_a_real_byte_level_vocabulary():
    vocabulary = make_shapes.wide_vocabulary(151_936)
    assert len(vocabulary.tokens) == len(set(vocabulary.tokens)) == len(vocabulary.types) == 151_936
    known = set(vocabulary.tokens[:256])
    for merge in vocabulary.merges:
        left, right = merge.split(" ")
        assert left in known and right in known
        known.add(left + right)
    assert vocabulary.tokens[vocabulary.eos] == "<|im_end|>"


def test_blocks_that_do_not_fill_a_row_are_refused(tmp_path):
    path = tmp_path / "a.gguf"
    with pytest.raises(ValueError, match=r"q4_k_m: .* 2880 columns of gpt-oss-20b; use q8_0 or mxfp4 or f16"):
        make_shapes.make_shapes(path, "gpt-oss-20b", "q4_k_m")
    assert not path.exists()
