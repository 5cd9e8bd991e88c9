"""The engine's logits against llama.cpp's, on generated models and on the built-in one (float32)."""

from collections.abc import Iterator

import numpy as np
import pytest

from app.models.builtin import builtin_model_path
from engine.api.request import Request, SamplingParams
from engine.engine import Engine
from tests.support.goldens import (
    BUILTIN_NAME,
    FOLDER,
    Golden,
    best_differs,
    golden_names,
    model_file,
    nmse,
)
from tests.support.tiny_blocks import TYPES
from tests.support.tiny_gguf import dequantised_f32_copy, make_tiny, weights_hash

NMSE_LIMIT = 1e-8
ORDER_LIMIT = 1e-11
"""Of sums of the same products in float32: packed weights and dequantised ones add them in other orders."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = Engine(device="cpu", kv_dtype="float32", weight_dtype="float32", threads=1)
    yield engine
    engine.close()


def engine_logits(engine: Engine, path, tokens: list[int]) -> np.ndarray:
    model = engine.load(path)
    try:
        return model.logits(tokens).numpy()
    finally:
        model.unload()


@pytest.mark.parametrize("name", golden_names())
def test_logits_equal_llama_cpp(name: str, engine: Engine, tmp_path):
    golden = Golden.load(name)
    quantised = model_file(golden, tmp_path)
    plain = dequantised_f32_copy(quantised, tmp_path / "plain.gguf")
    ours = engine_logits(engine, plain, golden.tokens)
    assert ours.shape == golden.logits.shape
    assert nmse(ours, golden.logits) <= NMSE_LIMIT
    assert best_differs(ours, golden.logits) == []
    on_quantised = engine_logits(engine, quantised, golden.tokens)
    assert nmse(on_quantised, ours) <= ORDER_LIMIT
    assert best_differs(on_quantised, ours) == []


@pytest.mark.parametrize("quant", [kind for kind in TYPES if kind not in ("F32", "F16", "BF16")])
def test_every_type_computes_what_its_dequantised_values_do(quant: str, engine: Engine, tmp_path):
    tokens = list(range(7, 40))
    quantised = make_tiny(tmp_path / "quantised.gguf", "qwen3", quant=quant, layers=1, tied=True)
    plain = dequantised_f32_copy(quantised, tmp_path / "plain.gguf")
    expected = engine_logits(engine, plain, tokens)
    assert expected.std() > 0.1
    assert nmse(engine_logits(engine, quantised, tokens), expected) <= ORDER_LIMIT


def test_the_comparison_notices_another_model(engine: Engine, tmp_path):
    golden, other = Golden.load("llama_f32"), Golden.load("llama_linear_q8_0")
    ours = engine_logits(engine, model_file(other, tmp_path), golden.tokens)
    assert nmse(ours, golden.logits) > 1e-2


def test_builtin_model_equals_llama_cpp(engine: Engine):
    with np.load(FOLDER / f"{BUILTIN_NAME}.npz") as data:
        golden = dict(data)
    path = builtin_model_path()
    assert weights_hash(path) == str(golden["weights_sha256"]), "the built-in model is another file now"
    model = engine.load(path)
    prompt = golden["tokens"].tolist()
    ours = model.logits(prompt).numpy()
    assert nmse(ours[golden["rows"]], golden["full"]) <= NMSE_LIMIT
    assert nmse(np.take_along_axis(ours, golden["best_ids"], 1), golden["best_logits"]) <= NMSE_LIMIT
    clear = golden["best_logits"][:, 0] - golden["best_logits"][:, 1] > 1e-3
    assert (ours.argmax(1) == golden["best_ids"][:, 0])[clear].all()
    request = Request(
        tuple(prompt), SamplingParams(temperature=0), max_tokens=len(golden["greedy"]), ignore_eog=True
    )
    generation = model.submit(request)
    ids = [token for event in generation.events() for token in getattr(event, "token_ids", ())]
    assert ids == golden["greedy"].tolist()
    model.unload()
