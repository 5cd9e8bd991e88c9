"""A small part of `tests.perf.soak` and of `tests.perf.aborts`."""

import pytest

from engine.api.request import FinishReason
from tests.perf.aborts import abort_at_random
from tests.perf.soak import soak
from tests.support.tiny_gguf import make_tiny


@pytest.mark.parametrize("seed", [1, 2])
def test_random_use_of_the_facade_ends_every_request_once_and_holds_no_block(seed: int, tmp_path):
    path = make_tiny(tmp_path / "stays.gguf", "qwen3", quant="Q8_0", width=64, ffn=64, head_dim=32)
    made = soak(3.0, seed, stays=path, debug=True)
    submitted = sum(made.happened[what] for what in ("new", "fork", "continue"))
    assert submitted == sum(made.happened[str(reason)] for reason in FinishReason) > 0


@pytest.mark.parametrize("seed", [1, 2])
def test_random_aborts_leak_no_block(seed: int):
    assert "no block was leaked" in abort_at_random(120, seed)
