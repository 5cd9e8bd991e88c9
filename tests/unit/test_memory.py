"""What does not fit is said with numbers."""

import gc

import pytest
import torch

from engine import memory
from engine.errors import EngineError
from engine.memory import check_weights_fit, format_bytes, freeze_garbage

CPU = torch.device("cpu")


def test_sizes_read_well():
    assert [format_bytes(n) for n in (0, 1023, 1536, 3 << 20, 5 << 30)] == [
        "0 B", "1023 B", "1.5 KiB", "3.0 MiB", "5.0 GiB",
    ]  # fmt: skip


def test_weights_that_do_not_fit_are_refused_with_numbers(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda _device: 10 << 30)
    check_weights_fit("small.gguf", 1 << 32, 1 << 31, CPU)
    with pytest.raises(EngineError, match=r"big\.gguf.*16\.0 GiB.*10\.0 GiB.*bfloat16.*8\.0 GiB"):
        check_weights_fit("big.gguf", 4 << 32, 4 << 31, CPU)
    with pytest.raises(EngineError) as refused:
        check_weights_fit("huge.gguf", 8 << 32, 8 << 31, CPU)
    assert "bfloat16" not in str(refused.value)


def test_what_exists_when_a_model_is_loaded_is_left_alone_by_later_collections():
    kept = [[] for _ in range(1000)]
    freeze_garbage()
    assert gc.get_freeze_count() >= len(kept)
    gc.unfreeze()
