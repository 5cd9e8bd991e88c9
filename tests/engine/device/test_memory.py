"""What does not fit is said with numbers."""

import gc
import re
from dataclasses import replace

import pytest
import torch

from engine.api.errors import EngineError
from engine.device import memory
from engine.device.fit_advice import Holders, Need, format_bytes
from engine.device.memory import check_weights_fit, freeze_garbage

CPU = torch.device("cpu")
NOBODY = Holders()


def test_sizes_read_well():
    assert [format_bytes(n) for n in (0, 1023, 1536, 3 << 20, 5 << 30)] == [
        "0 B", "1023 B", "1.5 KiB", "3.0 MiB", "5.0 GiB",
    ]  # fmt: skip


def refusal(need: Need, holders: Holders = NOBODY) -> str:
    with pytest.raises(EngineError) as refused:
        check_weights_fit(need, CPU, holders)
    return str(refused.value)


@pytest.fixture
def ten_free(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda _device: 10 << 30)


def test_weights_that_do_not_fit_are_refused_with_numbers(ten_free):
    check_weights_fit(Need("small.gguf", 1 << 32, 1 << 30, 1 << 31), CPU, NOBODY)
    big = refusal(Need("big.gguf", 4 << 32, 4 << 30, 4 << 31))
    assert re.search(r"big\.gguf.*16\.0 GiB.*10\.0 GiB.*bfloat16.*8\.0 GiB", big)
    huge = refusal(Need("huge.gguf", 8 << 32, 8 << 30, 8 << 31))
    assert "bfloat16" not in huge
    assert "a model of at most 2.6 billion weights" in huge


def test_a_smaller_quantisation_is_named_where_weights_stay_as_in_the_file(ten_free):
    need = Need("big-Q8_0.gguf", 17 << 30, 16 * 10**9, as_in_file=True)
    assert "as Q4_K_M, about 9.7 GiB" in refusal(need)
    assert " as Q" not in refusal(replace(need, as_in_file=False))
    assert " as Q" not in refusal(replace(need, parameters=40 * 10**9)), "none is small enough"


def test_models_to_close_are_named_only_if_that_is_enough(ten_free):
    need = Need("big.gguf", 16 << 30, 16 * 10**9)
    models = (("small", 2 << 30), ("middle", 7 << 30), ("large", 9 << 30))
    assert "closing middle (7.0 GiB);" in refusal(need, Holders(models))
    assert "closing a (4.0 GiB) and b (3.0 GiB);" in refusal(
        need, Holders((("b", 3 << 30), ("a", 4 << 30), ("c", 1 << 30)))
    )
    few = refusal(
        need, Holders((("small", 2 << 30),), kv_bytes=1 << 30, limit_bytes=12 << 30, beyond_limit=1)
    )
    assert "closing other programs." in few
    assert "small" not in few and "chats" not in few and "vram-limit" not in few
    assert "ending chats, whose context holds 7.0 GiB" in refusal(need, Holders(kv_bytes=7 << 30))
    raised = refusal(need, Holders(limit_bytes=12 << 30, beyond_limit=8 << 30))
    assert "a --vram-limit of 18.2 GiB instead of 12.0 GiB" in raised


def test_what_exists_when_a_model_is_loaded_is_left_alone_by_later_collections():
    kept = [[] for _ in range(1000)]
    freeze_garbage()
    assert gc.get_freeze_count() >= len(kept)
    gc.unfreeze()
