"""The NumPy float64 oracle against llama.cpp's logits, so that mismatches can be traced with it."""

import numpy as np
import pytest

from tests.support.goldens import Golden, golden_names, model_file, nmse
from tests.support.reference_model import ReferenceModel


@pytest.mark.parametrize("name", golden_names())
def test_reference_equals_llama_cpp(name: str, tmp_path):
    golden = Golden.load(name)
    logits = ReferenceModel(model_file(golden, tmp_path)).logits(golden.tokens)
    assert nmse(logits, golden.logits) <= 1e-9
    assert np.abs(logits - golden.logits).max() <= 2e-3


def test_a_wrong_rope_pairing_is_noticed(tmp_path):
    golden = Golden.load("llama_f32")
    model = ReferenceModel(model_file(golden, tmp_path))
    model.rotate = lambda x, rotation: x
    assert nmse(model.logits(golden.tokens), golden.logits) > 1e-3
