"""KV is as wide as the memory allows, and what was not is told."""

from dataclasses import replace

import pytest

from engine.device.fit_advice import DEVICE_KV_SHARE
from engine.engine import Engine
from engine.footprint.fit import fit
from engine.footprint.kv_choice import KVChoice, Room, choose_kv
from engine.footprint.rules import DeviceRules, Holding, kv_bytes, weight_bytes
from engine.footprint.shape import Footprint, KVLayers, Linear, Matrix
from kernels.quant.formats import GGMLType
from tests.support.tiny_gguf import make_tiny

GPU = DeviceRules("cuda:0", "GPU", Holding.PLANES, 2, "float16", 64, kv_choices=("float16", "q8_0"))
CPU = DeviceRules("cpu", "CPU", Holding.PACKED, 4, "float32", 32, kv_choices=("float32", "float16", "q8_0"))
PLENTY = 1 << 50


def model(context: int = 40960, window: int = 0) -> Footprint:
    """128 KiB of float16 KV a token."""
    head = Linear((Matrix(GGMLType.Q8_0, 1 << 15),), 1 << 10)
    groups = [KVLayers(32, 0, 8, 128)]
    if window:
        groups = [KVLayers(16, 0, 8, 128), KVLayers(16, window, 8, 128)]
    return Footprint(((head, 1),), (), head, True, 10**5, tuple(groups), context)


@pytest.mark.parametrize("footprint", [model(), model(1 << 20), model(2048), model(window=1024)])
def test_a_type_stays_while_it_holds_the_context_or_four_chats(footprint):
    chats = 4 * kv_bytes(footprint, GPU, min(8000, footprint.context_length))
    enough = min(chats, kv_bytes(footprint, GPU, footprint.context_length))
    assert choose_kv(footprint, GPU, Room(PLENTY, enough)) == KVChoice("float16")
    found = choose_kv(footprint, GPU, Room(PLENTY, enough - 1))
    assert found.kv_format == "q8_0" and found.note.startswith("float16 would hold ")


def test_the_tokens_that_are_told_are_what_the_wider_type_would_hold():
    found = choose_kv(model(), GPU, Room(PLENTY, 700 << 20))
    assert found == KVChoice("q8_0", "float16 would hold 5,568 tokens")
    assert kv_bytes(model(), GPU, 5568) <= 700 << 20 < kv_bytes(model(), GPU, 5568 + 64)


def test_room_is_what_weights_leave():
    weights = weight_bytes(model(), GPU)
    enough = weights + int(4 * kv_bytes(model(), GPU, 8000) / DEVICE_KV_SHARE)
    assert choose_kv(model(), GPU, Room(enough + 1)).kv_format == "float16"
    assert choose_kv(model(), GPU, Room(enough - (1 << 20))).kv_format == "q8_0"
    assert choose_kv(model(), GPU, Room(weights)).note == "float16 would hold 0 tokens"


def test_a_processor_goes_by_float16():
    chats = 4 * kv_bytes(model(), CPU, 8000)
    assert choose_kv(model(), CPU, Room(PLENTY, chats)) == KVChoice("float32")
    half = choose_kv(model(), CPU, Room(PLENTY, chats // 2))
    assert half.kv_format == "float16" and half.note.startswith("float32 would hold")
    last = choose_kv(model(), CPU, Room(PLENTY, chats // 2 - 1))
    assert last.kv_format == "q8_0" and last.note.startswith("float16 would hold")


def test_a_type_that_is_named_is_kept_and_nothing_is_narrowed_unasked():
    named = replace(GPU, kv_choices=("float16",))
    assert choose_kv(model(), named, Room(PLENTY, 1 << 20)) == KVChoice("float16")
    assert choose_kv(model(), GPU, Room(None)) == KVChoice("float16")


def test_what_is_said_of_a_file_is_what_a_load_would_choose():
    found = fit(model(), GPU, Room(PLENTY, 2 << 30))
    assert (found.kv_format, found.kv_note) == ("q8_0", "float16 would hold 16,384 tokens")
    assert found.chat_bytes == kv_bytes(model(), replace(GPU, kv_format="q8_0"), 8192)
    assert fit(model(), GPU, Room(PLENTY)).kv_note == ""


@pytest.mark.parametrize("kv_dtype", ["auto", "float16", "q8_0"])
def test_a_load_chooses_and_statistics_tell(kv_dtype, tmp_path):
    path = make_tiny(tmp_path / "tiny.gguf", "qwen3", context_length=4096)
    with Engine("cpu", weight_dtype="float32", kv_dtype=kv_dtype, kv_budget_bytes=256 << 10) as engine:
        loaded = engine.load(path)
        (told,) = engine.stats().models
        whole = engine.stats().kv_dtype
    expected = "q8_0" if kv_dtype == "auto" else kv_dtype
    assert loaded.info.kv_dtype == told.kv_dtype == whole == expected
    assert loaded.info.kv_note == told.kv_note
    assert bool(told.kv_note) == (kv_dtype == "auto")
