"""Settings as converters write them, and as nobody should: refused by name before anything grows."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter

import engine.device.memory as memory
from engine.api.errors import EngineError, ModelFileError, UnsupportedModelError
from engine.api.request import FinishReason, Request, SamplingParams
from engine.device import free_memory
from engine.device.fit_advice import Holders, Need
from engine.engine import Engine
from engine.gguf.file import open_gguf
from engine.model.config import read_config
from engine.model.spec import ModelConfig, RopeConfig, RopeScaling
from tests.support import tiny_gguf
from tests.support.passes import load_decoder
from tests.support.tiny_gguf import make_tiny

BASE = {
    "context_length": 4096,
    "embedding_length": 64,
    "block_count": 1,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-6,
}


def header(path: Path, arch: str, *, without: str = "", tensors: int = 3, **changed) -> Path:
    writer = GGUFWriter(str(path), arch)
    for key, value in (BASE | {name.replace("__", "."): given for name, given in changed.items()}).items():
        name = f"{arch}.{key}"
        if key == without:
            continue
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif value < 0:
            writer.add_int32(name, value)
        else:
            writer.add_uint32(name, value)
    for index in range(tensors):
        writer.add_tensor("token_embd.weight" if not index else f"t{index}", np.zeros((300, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def config(path: Path, arch: str = "llama", **changed) -> ModelConfig:
    with open_gguf(header(path / "m.gguf", arch, **changed)) as file:
        return read_config(file)


def rope(made: ModelConfig) -> RopeConfig:
    found = made.layers[0].attention.rope
    assert found is not None
    return found


def test_mistral_with_a_window_and_explicit_heads(tmp_path):
    made = config(
        tmp_path,
        attention__key_length=32,
        attention__value_length=32,
        rope__dimension_count=32,
        attention__sliding_window=1024,
        rope__freq_base=1e6,
    )
    (layer,) = made.layers
    attention = layer.attention
    assert (attention.head_dim, attention.q_size, attention.kv_size, attention.window) == (32, 128, 64, 1024)
    assert (made.context_length, rope(made).base, made.vocab_size) == (4096, 1e6, 300)


def test_a_window_of_some_layers_unknown_caps_the_context(tmp_path):
    made = config(tmp_path, "qwen2", attention__sliding_window=1024)
    assert (made.context_length, made.layers[0].attention.window) == (1024, 0)


def test_qwen2_with_yarn(tmp_path):
    made = config(
        tmp_path,
        "qwen2",
        rope__scaling__type="yarn",
        rope__scaling__factor=4.0,
        rope__scaling__original_context_length=1024,
        rope__scaling__attn_factor=0.5,
        rope__scaling__yarn_attn_factor=3.0,
    )
    made = rope(made)
    assert (made.scaling, made.factor, made.original_context) == (RopeScaling.YARN, 4.0, 1024)
    # Converters write the attention factor twice; who reads both multiplies it in twice.
    assert (made.ext_factor, made.attn_factor) == (1.0, 0.5)


def test_experts_are_in_some_layers(tmp_path):
    made = config(
        tmp_path,
        "ernie4_5-moe",
        tensors=8,
        block_count=7,
        expert_count=4,
        expert_used_count=2,
        expert_feed_forward_length=32,
        expert_shared_feed_forward_length=64,
        interleave_moe_layer_step=2,
        leading_dense_block_count=2,
    )
    assert [index for index, layer in enumerate(made.layers) if layer.experts is not None] == [3, 5]
    assert [layer.ffn_size for layer in made.layers] == [96, 96, 96, 0, 96, 0, 96]


@pytest.mark.parametrize(("arch", "layers"), [("olmo2", 4), ("exaone4", 64)])
def test_windowed_layers_may_have_a_base_of_their_own(arch: str, layers: int, tmp_path):
    made = config(
        tmp_path,
        arch,
        tensors=layers,
        block_count=layers,
        attention__sliding_window=128,
        rope__freq_base=5e5,
        rope__freq_base_swa=1e4,
    )
    windowed, full = made.layers[2].attention, made.layers[3].attention
    assert windowed.window == 128 and rope(made).base == 1e4
    assert full.window == 0 and (full.rope is None if arch == "exaone4" else full.rope.base == 5e5)


GEMMA4 = {
    "tensors": 8,
    "block_count": 3,
    "attention__head_count": 4,
    "attention__head_count_kv": [2, 1, 2],
    "attention__key_length": 32,
    "attention__value_length": 32,
    "attention__key_length_swa": 16,
    "attention__value_length_swa": 16,
    "attention__sliding_window": 128,
    "attention__sliding_window_pattern": [1, 0, 1],
    "rope__dimension_count": 32,
    "rope__dimension_count_swa": 16,
    "rope__freq_base": 1e6,
    "rope__freq_base_swa": 1e4,
}


def test_gemma4_has_layers_of_two_shapes(tmp_path):
    made = config(tmp_path, "gemma4", **GEMMA4)
    groups = [(group.shape.window, group.shape.kv_heads, group.shape.head_dim) for group in made.kv_groups]
    assert groups == [(0, 1, 32), (128, 2, 16)]
    windowed, full = made.layers[0].attention, made.layers[1].attention
    assert windowed.rope is not None and full.rope is not None
    assert (windowed.rope.dims, windowed.rope.base, windowed.rope.divisors) == (16, 1e4, None)
    assert (full.rope.dims, full.rope.base, full.rope.divisors) == (32, 1e6, "rope_freqs.weight")
    assert full.keys_as_values and not windowed.keys_as_values
    assert made.logit_softcap == 30.0


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("attention.shared_kv_layers", 2, UnsupportedModelError),
        ("embedding_length_per_layer_input", 256, UnsupportedModelError),
        ("attention.value_length_swa", 32, UnsupportedModelError),
        ("rope.dimension_count_swa", 18, ModelFileError),
        ("attention.sliding_window_pattern", [1, 0], ModelFileError),
    ],
)
def test_gemma4_with_what_is_not_supported_is_refused_by_name(key: str, value, error, tmp_path):
    with pytest.raises(error, match=f"gemma4.{key}: "):
        config(tmp_path, "gemma4", **GEMMA4 | {key.replace(".", "__"): value})


def test_old_linear_scaling_has_no_type_and_none_means_none(tmp_path):
    assert rope(config(tmp_path, rope__scale_linear=2.0)).scaling is RopeScaling.LINEAR
    assert (
        rope(config(tmp_path, rope__scaling__type="none", rope__scaling__factor=8.0)).scaling
        is RopeScaling.NONE
    )


def test_sizes_may_be_given_for_each_layer(tmp_path):
    made = config(
        tmp_path, block_count=3, attention__head_count_kv=[2, 2, 2], feed_forward_length=[96, 64, 96]
    )
    assert [layer.attention.kv_heads for layer in made.layers] == [2, 2, 2]
    assert [layer.ffn_size for layer in made.layers] == [96, 64, 96]
    made = config(tmp_path, block_count=3, attention__head_count=[4, 2, 4])
    assert [layer.attention.heads for layer in made.layers] == [4, 2, 4]
    made = config(tmp_path, block_count=3, attention__head_count_kv=[4, 2, 4])
    assert [(group.shape.kv_heads, group.layers) for group in made.kv_groups] == [(2, (1,)), (4, (0, 2))]
    with pytest.raises(ModelFileError, match="head_count_kv: 0 is not a positive size"):
        config(tmp_path, attention__head_count_kv=[0, 0])
    with pytest.raises(ModelFileError, match="feed_forward_length: is no list of whole numbers for 3"):
        config(tmp_path, block_count=3, feed_forward_length=[96, 64])


def test_experts_that_cannot_be_are_refused(tmp_path):
    assert config(tmp_path, expert_count=4, expert_used_count=2).layers[0].experts is not None
    with pytest.raises(ModelFileError, match="expert_used_count: 5 of 4 experts"):
        config(tmp_path, expert_count=4, expert_used_count=5)
    with pytest.raises(ModelFileError, match="expert_used_count: is missing"):
        config(tmp_path, expert_count=4)
    with pytest.raises(UnsupportedModelError, match="expert_gating_func: 9 is not one of"):
        config(tmp_path, expert_count=4, expert_used_count=2, expert_gating_func=9)
    with pytest.raises(UnsupportedModelError, match=r"qwen2\.expert_count: 4; 'qwen2' models with it"):
        config(tmp_path, "qwen2", expert_count=4)


def test_a_key_that_would_change_the_result_is_refused_where_nobody_reads_it(tmp_path):
    for arch, key in (("llama", "residual_scale"), ("qwen2", "attention.sliding_window_pattern")):
        assert config(tmp_path, arch, **{key.replace(".", "__"): 1.0 if "scale" in key else 0})
    with pytest.raises(UnsupportedModelError, match=r"llama.residual_scale: 0.5; 'llama' models with it"):
        config(tmp_path, residual_scale=0.5)
    with pytest.raises(UnsupportedModelError, match=r"qwen3.final_logit_softcapping: 30.0"):
        config(tmp_path, "qwen3", final_logit_softcapping=30.0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", 0),
        ("block_count", (1 << 31) - 1),
        ("context_length", 0),
        ("context_length", -1),
        ("embedding_length", "wide"),
        ("attention.head_count", 0),
        ("attention.head_count", 1 << 30),
        ("attention.head_count_kv", 3),
        ("attention.key_length", 15),
        ("attention.value_length", 8),
        ("attention.layer_norm_rms_epsilon", -1.0),
        ("attention.layer_norm_rms_epsilon", float("nan")),
        ("rope.dimension_count", 7),
        ("rope.dimension_count", 32),
        ("rope.freq_base", 0.0),
        ("rope.freq_base", float("inf")),
        ("rope.scaling.type", "longrope"),
        ("rope.scaling.factor", -2.0),
        ("rope.scaling.yarn_beta_fast", 0.0),
        ("rope.scaling.yarn_beta_slow", -1.0),
    ],
)
def test_absurd_values_are_refused_by_name_at_once(key: str, value, tmp_path):
    started = time.process_time()
    with pytest.raises(ModelFileError, match=rf"m\.gguf: .*{key.replace('.', '[.]')}"):
        config(tmp_path, **{key.replace(".", "__"): value})
    assert time.process_time() - started < 2.0


@pytest.mark.parametrize(
    "key", ["block_count", "context_length", "attention.head_count", "attention.layer_norm_rms_epsilon"]
)
def test_missing_keys_are_named(key: str, tmp_path):
    with pytest.raises(ModelFileError, match=rf"llama\.{key}: is missing"):
        config(tmp_path, without=key)


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_huge_heads_are_compared_with_the_tensors_before_anything_is_made(arch: str, tmp_path):
    path = header(
        tmp_path / "m.gguf",
        arch,
        attention__head_count=64,
        attention__head_count_kv=64,
        attention__key_length=1 << 30,
        attention__value_length=1 << 30,
        rope__dimension_count=1 << 30,
    )
    with pytest.raises(ModelFileError, match="t1"):
        load_decoder(path)


def test_a_context_of_two_billion_needs_no_more_than_the_budget(tmp_path, monkeypatch):
    real = tiny_gguf.GGUFWriter.add_context_length
    monkeypatch.setattr(
        tiny_gguf.GGUFWriter, "add_context_length", lambda self, _n: real(self, (1 << 31) - 1)
    )
    path = make_tiny(tmp_path / "m.gguf", "llama")
    exact = {"weight_dtype": "float32", "kv_dtype": "float32"}
    with Engine("cpu", kv_budget_bytes=8 << 20, threads=1, **exact) as engine:
        model = engine.load(path)
        assert model.context_length == (1 << 31) - 1
        params = SamplingParams(temperature=0.0)
        request = Request((20, 21), params, max_tokens=4, ignore_eog=True)
        assert model.submit(request).result(60)[1].reason is FinishReason.LENGTH
        with pytest.raises(EngineError, match="KV memory holds 4096"):
            model.submit(Request(tuple([20] * 5000)))


def test_a_broken_last_layer_is_found_before_the_first_is_converted(tmp_path, monkeypatch):
    real = tiny_gguf.tiny_weights

    def broken(recipe):
        weights = real(recipe)
        raw, kind = weights["blk.1.ffn_down.weight"]
        weights["blk.1.ffn_down.weight"] = (raw[:-1], kind)
        return weights

    monkeypatch.setattr(tiny_gguf, "tiny_weights", broken)
    path = make_tiny(tmp_path / "m.gguf", "llama")
    seen: list[str] = []
    refused = pytest.raises(ModelFileError, match=r"blk\.1\.ffn_down\.weight: shape \(255, 512\)")
    with Engine("cpu", kv_budget_bytes=8 << 20, threads=1, weight_dtype="float32") as engine, refused:
        engine.load(path, progress=lambda fraction, what: seen.append(what))
    assert seen == ["header"]


@pytest.mark.parametrize("rows", [320, 448])
def test_an_embedding_of_another_size_than_the_tokenizer_is_served(rows: int, tmp_path, monkeypatch):
    """Padded embeddings sample ids without text; with a larger tokenizer some ids are refused."""
    real = tiny_gguf._vocabulary
    monkeypatch.setattr(tiny_gguf, "_vocabulary", lambda recipe: real(tiny_gguf.TinyRecipe("llama")))
    path = make_tiny(tmp_path / "m.gguf", "llama", vocab_size=rows)
    with Engine("cpu", weight_dtype="float32", kv_budget_bytes=8 << 20, threads=1) as engine:
        model = engine.load(path)
        assert model.tokenizer.vocab_size == 384 and model.logits([20]).shape == (1, rows)
        last = SamplingParams(temperature=0.0, logit_bias={rows - 1: 1e4, 383: 5e3})
        text, end = model.submit(Request((20, 21), last, max_tokens=5, ignore_eog=True)).result(60)
        assert (end.reason, end.completion_tokens) == (FinishReason.LENGTH, 5)
        assert text == model.tokenizer.decode([rows - 1] * 5)
        with pytest.raises(EngineError, match=f"ids go from 0 to {rows - 1}"):
            model.submit(Request((rows,)))


def test_memory_messages_have_numbers(monkeypatch):
    device = torch.device("cpu")
    monkeypatch.setattr(memory, "free_bytes", lambda _device: 3 << 30)
    with pytest.raises(
        EngineError, match=r"big\.gguf: its weights need 4\.0 GiB and 3\.0 GiB .*bfloat16.* 2\.0 GiB"
    ):
        memory.check_weights_fit(Need("big.gguf", 1 << 32, 1 << 30, 1 << 31), device, Holders())
    memory.check_weights_fit(Need("big.gguf", 1 << 31, 1 << 29, 1 << 30), device, Holders())
    with pytest.raises(EngineError, match=r"big\.gguf: 32 tokens need 2\.0 MiB of KV memory and 1\.0 MiB"):
        memory.check_block_fits("big.gguf", 2 << 20, 32, 1 << 20)
    assert memory.kv_room(1 << 40, device) == (3 << 30) - (128 << 20)
    assert memory.kv_room(1 << 20, device) == 1 << 20


def test_a_containers_limit_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(free_memory, "_CGROUP", tmp_path)
    assert memory.free_bytes(torch.device("cpu")) > 64 << 20
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text(f"{48 << 20}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {8 << 20}\n")
    assert memory.free_bytes(torch.device("cpu")) > 64 << 20
    (tmp_path / "memory.max").write_text(f"{64 << 20}\n")
    assert memory.free_bytes(torch.device("cpu")) == 24 << 20


def test_results_that_no_other_row_changes_are_promised_only_where_kernels_give_them():
    with pytest.raises(EngineError, match="batch_independent: only a GPU"):
        Engine("cpu", batch_independent=True)
