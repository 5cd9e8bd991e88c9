"""A computer whose memory and speed do not depend on the one that tests run on."""

import pytest

from app.cli import pull
from app.models.fit import device, pace
from app.models.fit.device import Memory
from engine import DeviceRules, Room
from engine.footprint.rules import Holding

GPU = DeviceRules("cuda:0", "Acme 9", Holding.PLANES, 2, "bfloat16", 64, "GPU-1")
CPU = DeviceRules("cpu", "this computer's processor", Holding.PACKED, 4, "float32", 32)


def give_memory(
    monkeypatch: pytest.MonkeyPatch,
    free: int | None,
    rules: DeviceRules = CPU,
    *,
    bandwidth: float | None = None,
) -> None:
    """What the catalogue's models are held against."""
    memory = Memory(rules, Room(free))
    monkeypatch.setattr(device, "memory_of", lambda _search: memory)
    monkeypatch.setattr(pull, "memory_of", lambda _search: memory)
    monkeypatch.setattr(pace, "_bandwidth", lambda *_: bandwidth)
