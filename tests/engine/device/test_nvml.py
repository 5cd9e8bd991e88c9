"""What a GPU's driver tells, by a library that stands for it."""

import pytest
import torch

from engine.api.detail import DeviceUse
from engine.device import nvml
from engine.device.nvml import device_use, read_use

KNOWN, UNKNOWN = 0, 3


class Library:
    """Fills what it is given, as the driver's library does."""

    def __init__(self, power=KNOWN, memory=KNOWN):
        self.power, self.memory = power, memory

    def nvmlDeviceGetHandleByUUID(self, name, handle):
        return KNOWN if name == b"GPU-1" else UNKNOWN

    def nvmlDeviceGetMemoryInfo(self, handle, memory):
        memory._obj.total, memory._obj.used = 80 << 30, 12 << 30
        return self.memory

    def nvmlDeviceGetPowerUsage(self, handle, milliwatts):
        milliwatts._obj.value = 312_500
        return self.power


def test_memory_and_power_are_the_drivers():
    assert read_use(Library(), "GPU-1") == DeviceUse(12 << 30, 80 << 30, 312.5)


def test_what_the_driver_does_not_tell_is_not_made_up():
    assert read_use(Library(power=UNKNOWN), "GPU-1").watts is None
    assert read_use(Library(memory=UNKNOWN), "GPU-1") == DeviceUse(None, None, 312.5)
    assert read_use(Library(), "GPU-2") is None
    assert device_use(torch.device("cpu")) is None


@pytest.mark.parametrize("error", [AttributeError("no uuid"), RuntimeError("device lost")], ids=str)
def test_a_driver_that_cannot_be_asked_is_none(monkeypatch, error):
    def properties(device):
        raise error

    monkeypatch.setattr(nvml, "_library", Library)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    assert device_use(torch.device("cuda", 0)) is None
