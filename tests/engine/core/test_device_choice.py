"""How many threads compute on the processor."""

import pytest
import torch

from engine.core import device_choice


@pytest.mark.parametrize(
    "device, cores, counted, expected",
    [("cpu", 2, 2, 2), ("cpu", 16, 16, 16), ("cpu", 4, 16, 4), ("cuda", 4, 4, 4), ("cuda", 16, 16, 14)],
)
def test_a_gpu_of_many_cores_is_left_some(monkeypatch, device: str, cores: int, counted: int, expected: int):
    """torch counts all of the machine's."""
    monkeypatch.setattr(device_choice, "usable_cores", lambda: cores)
    monkeypatch.setattr(torch, "get_num_threads", lambda: counted)
    assert device_choice.threads_beside(device) == expected
