"""What is said of a file and of the memory that is free follows the rules by which the engine divides it."""

from dataclasses import replace

import pytest
import torch

from engine.api.options import EngineOptions
from engine.core import runner_loader
from engine.core.device_choice import device_rules
from engine.device import free_memory, memory
from engine.device.fit_advice import DEVICE_KV_SHARE, LOAD_MARGIN
from engine.engine import Engine
from engine.footprint.fit import SLOTS_PER_CONTEXT, AdviceKind, Verdict, fit
from engine.footprint.kv_choice import Room
from engine.footprint.rules import DeviceRules, Holding, kv_bytes, weight_bytes
from engine.footprint.scratch import longest_pass, scratch_bytes
from engine.footprint.shape import Experts, Footprint, KVLayers, Linear, Matrix
from kernels.quant.formats import GGMLType

CPU = DeviceRules("cpu", "CPU", Holding.PACKED, 4, "float32", 32)
GPU = DeviceRules("cuda:0", "GPU", Holding.PLANES, 2, "float16", 64)
GB = 10**9


def model(kind=GGMLType.Q8_0, experts=()):
    """Of a billion weights, with 128 KiB of float16 KV a token."""
    head = Linear((Matrix(kind, 1 << 15),), 1 << 10)
    body = Linear((Matrix(kind, 1 << 12),), 1 << 12)
    return Footprint(((head, 1), (body, 58)), experts, head, True, 10**5, (KVLayers(32, 0, 8, 128),), 40960)


def test_all_that_is_wanted_fits():
    found = fit(model(), GPU, Room(11 * GB), context=8192, chats=2)
    assert (found.verdict, found.advice) == (Verdict.FITS, ())
    assert found.weight_bytes == weight_bytes(model(), GPU)
    assert found.chat_bytes == kv_bytes(model(), GPU, 8192) == 1 << 30
    assert found.kv_bytes == 2 << 30
    assert found.chats_that_fit == int((11 * GB - found.weight_bytes) * DEVICE_KV_SHARE) // (1 << 30)
    assert found.scratch_bytes == LOAD_MARGIN


def test_scratch_of_the_longest_pass_is_no_room_for_kv():
    """Of an 8 GiB card beside 4.7 GB of weights a twentieth would be less than half of it."""
    counted = replace(GPU, pass_tokens=4096)
    left = 3 << 30
    room = Room(weight_bytes(model(), GPU) + left)
    longest = longest_pass(model(), counted, left)
    scratch = scratch_bytes(model(), counted, longest)
    found = fit(model(), counted, room, context=1024)
    assert found.scratch_bytes == max(scratch, LOAD_MARGIN)
    assert found.chats_that_fit == int((left - scratch) * DEVICE_KV_SHARE) // found.chat_bytes
    assert fit(model(), GPU, room, context=1024).chats_that_fit > found.chats_that_fit


def test_a_chat_is_no_longer_than_the_model_reads():
    short = replace(model(), context_length=1000)
    assert fit(short, GPU, Room(11 * GB)).context == 1000
    assert fit(model(), GPU, Room(11 * GB)).context == 8192


def test_weights_that_leave_no_margin_are_too_large():
    weights = weight_bytes(model(), CPU)
    assert fit(model(), CPU, Room(weights + LOAD_MARGIN - 1)).verdict is Verdict.TOO_LARGE
    found = fit(model(), CPU, Room(weights + LOAD_MARGIN))
    assert (found.verdict, found.chats_that_fit) == (Verdict.FEWER, 0)


def test_what_is_not_known_is_not_judged():
    found = fit(model(), GPU, Room(None))
    assert (found.verdict, found.advice, found.weight_bytes > GB) == (Verdict.UNKNOWN, (), True)


@pytest.mark.parametrize(("rules", "budget"), [(CPU, 2 << 30), (GPU, 2 << 30)])
def test_a_budget_of_the_settings_holds(rules, budget):
    room = Room(100 * GB, budget)
    assert fit(model(), rules, room).chats_that_fit == budget // kv_bytes(model(), rules, 8192)


def test_a_cpu_gives_kv_half_of_what_is_free():
    assert fit(model(), CPU, Room(64 << 30)).chats_that_fit == (32 << 30) // kv_bytes(model(), CPU, 8192)


def test_no_more_chats_fit_than_slots_are_reserved():
    assert SLOTS_PER_CONTEXT == runner_loader.SLOTS_PER_CONTEXT
    short = replace(model(), context_length=4096)
    assert fit(short, GPU, Room(900 * GB)).chats_that_fit == SLOTS_PER_CONTEXT
    assert fit(short, GPU, Room(900 * GB), context=1024).chats_that_fit == 4 * SLOTS_PER_CONTEXT


def advice(footprint, rules, free, **wanted):
    found = fit(footprint, rules, Room(free), **wanted)
    assert found.verdict in (Verdict.FEWER, Verdict.TOO_LARGE), found
    return {one.kind: one for one in found.advice}


def test_narrow_kv_and_a_shorter_context_are_named_where_they_are_enough():
    weights = weight_bytes(model(), GPU)
    found = advice(model(), GPU, weights + (700 << 20))
    assert found[AdviceKind.KV_TYPE].value == "q8_0"
    tokens = int(found[AdviceKind.CONTEXT].value)
    assert 4096 < tokens < 5568 and tokens % 64 == 0
    room = (700 << 20) * DEVICE_KV_SHARE
    assert kv_bytes(model(), GPU, tokens) <= room < kv_bytes(model(), GPU, tokens + 64)
    assert AdviceKind.KV_TYPE not in advice(model(), replace(GPU, kv_format="q8_0"), weights + (400 << 20))


def test_the_largest_quantisation_that_fits_is_named():
    whole = weight_bytes(model(), GPU)
    found = advice(model(), GPU, int(whole * 0.85 + (1 << 30) / DEVICE_KV_SHARE))
    assert found[AdviceKind.QUANTISATION].value == "Q6_K"
    assert advice(model(), GPU, whole // 8) == {}


def test_where_torch_computes_a_smaller_quantisation_helps_experts_alone():
    torch = replace(CPU, holding=Holding.DENSE)
    assert list(advice(model(), torch, 4 * GB, context=512)) == [AdviceKind.WEIGHT_TYPE]
    one = Experts(64, (Matrix(GGMLType.Q8_0, 2048),), Matrix(GGMLType.Q8_0, 1024), 1024, 1024, 8)
    found = advice(model(experts=((one, 32),)), torch, 10 * GB, context=512)
    assert AdviceKind.QUANTISATION in found


def test_on_a_cpu_a_smaller_quantisation_helps():
    whole = weight_bytes(model(), CPU)
    found = advice(model(), CPU, int(whole * 0.85) + LOAD_MARGIN, context=512)
    assert found[AdviceKind.QUANTISATION].value == "Q6_K"


def test_an_engine_and_its_options_tell_the_same_rules():
    with Engine("cpu", weight_dtype="float32") as engine:
        assert engine.rules == device_rules(EngineOptions("cpu", weight_dtype="float32"))
    choices = ("float32", "float16", "q8_0")
    (rules,) = engine.rules
    assert rules == DeviceRules("cpu", rules.title, Holding.PACKED, 4, "float32", 32, kv_choices=choices)


class Driver:
    """NVML as far as it is asked."""

    def __init__(self, *, uuid=b"GPU-1", fails=()):
        self.uuid, self.fails, self.shut = uuid, fails, 0

    def __getattr__(self, name):
        return lambda *_: int(name in self.fails)

    def nvmlDeviceGetHandleByUUID(self, uuid, _handle):
        return int(uuid != self.uuid)

    def nvmlDeviceGetMemoryInfo(self, _handle, memory):
        memory._obj.free = 7 * GB
        return int("nvmlDeviceGetMemoryInfo" in self.fails)

    def nvmlShutdown(self):
        self.shut += 1


def test_the_driver_says_what_a_gpu_has_free(monkeypatch):
    driver = Driver()
    monkeypatch.setattr(free_memory.ctypes, "CDLL", lambda _name: driver)
    assert free_memory.free_gpu_bytes("GPU-1") == 7 * GB
    assert free_memory.free_gpu_bytes("GPU-2") is None
    for call in ("nvmlInit_v2", "nvmlDeviceGetMemoryInfo"):
        monkeypatch.setattr(free_memory.ctypes, "CDLL", lambda _name, call=call: Driver(fails=(call,)))
        assert free_memory.free_gpu_bytes("GPU-1") is None
    assert driver.shut == 2


def test_without_a_driver_nothing_is_said_of_a_gpu(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(free_memory.ctypes, "CDLL", missing)
    assert free_memory.free_gpu_bytes("GPU-1") is None


def test_torch_and_lists_ask_the_same_of_a_computer(monkeypatch):
    monkeypatch.setattr(memory, "free_host_bytes", lambda: 5)
    assert memory.free_bytes(torch.device("cpu")) == 5
