"""How a model is divided between a GPU and the processor: what each part takes, which division is chosen."""

from dataclasses import replace

import pytest
import torch

from engine.device.fit_advice import LOAD_MARGIN
from engine.footprint.device import rules_of
from engine.footprint.fit import Verdict, fit
from engine.footprint.kv_choice import HostRoom, Room
from engine.footprint.outline import Outline
from engine.footprint.rules import DeviceRules, Holding, kv_bytes, weight_bytes
from engine.footprint.shape import Footprint, read_footprint
from engine.footprint.split import LEAST_CHAT, choose_split, make_split, parts_of, split_rules
from engine.gguf.file import open_gguf
from engine.model.config import read_config
from engine.model.families import FAMILIES
from engine.model.split.placement import Placement
from engine.model.split.split_weights import load_split_weights
from engine.model.tensors import check_tensors
from engine.runner.split.split_kv import split_pool_bytes
from kernels.select import host_operations
from kernels.triton_operations import TritonOperations
from tests.support.family_goldens import REFUSED, all_families
from tests.support.tiny_gguf import make_tiny

GOLDENS = [one for one in all_families() if one.architecture in FAMILIES and one.name not in REFUSED]
TOLERANCE = 0.05
EXPERT_BIASES = 6000
"""Bytes that handles do not count: much of a tiny layer, a quarter of a percent of a real one."""
HOST = DeviceRules("cpu", "", Holding.PACKED, 2, "float16", 64)
KV = ("float16", "q8_0")
GPU = DeviceRules(
    "cuda:0", "", Holding.PLANES, 2, "float16", 64, kv_choices=KV, pass_tokens=4096, host=HOST
)  # fmt: skip
DENSE = Outline("Q4_K_M", 36, 4096, 32, 8, 128, 151_936, 40_960, ffn=12_288)
EXPERTS = Outline(
    "Q4_K_M", 48, 2048, 32, 4, 128, 151_936, 40_960, experts=128, experts_used=8, expert_ffn=768
)  # fmt: skip
GIB = 1 << 30


def check(path, placement):
    """What is said of both parts is what their handles hold, and a block of KV is as large."""
    ops = TritonOperations(torch.device("cpu"), "auto")
    host_ops, rules = host_operations(ops.kv_format, ops.block_size), rules_of(ops)
    with open_gguf(path) as file:
        config = read_config(file)
        footprint = read_footprint(file, config, check_tensors(file, config))
        held = load_split_weights(file, config, placement, ops, host_ops, lambda _part, _what: None)
    said = make_split(footprint, rules, placement)
    assert said.device_bytes == pytest.approx(held.device.nbytes, rel=TOLERANCE)
    assert said.host_bytes == pytest.approx(held.host.nbytes, rel=TOLERANCE, abs=EXPERT_BIASES)
    device, host = parts_of(footprint, placement)
    sizes = split_pool_bytes(ops, host_ops, config, placement.layers)
    assert (kv_bytes(device, rules, 1), kv_bytes(host, rules, 1)) == tuple(map(sum, sizes))


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: golden.name)
def test_of_every_family(golden, tmp_path):
    path = golden.write_model(tmp_path)
    with open_gguf(path) as file:
        layers = read_config(file).layers
    if any(layer.experts is not None for layer in layers):
        check(path, Placement(experts=1))
    check(path, Placement(layers=1, experts=99))


@pytest.mark.parametrize("quant", ["Q4_K_M", "F16", "Q8_0"])
def test_of_quantisations(quant, tmp_path):
    path = make_tiny(tmp_path / "a.gguf", "llama", quant=quant, layers=3, tied=quant == "Q8_0")
    check(path, Placement(layers=2))


def test_the_rules_of_the_processor_are_those_of_its_operations():
    ops = TritonOperations(torch.device("cpu"), "q8_0")
    said, made = rules_of(ops).host, rules_of(host_operations("q8_0", ops.block_size))
    assert said == made


def test_rules_and_footprints_survive_json():
    import json

    assert DeviceRules.from_data(json.loads(json.dumps(GPU.as_data()))) == GPU
    footprint = EXPERTS.footprint
    assert Footprint.from_data(json.loads(json.dumps(footprint.as_data()))) == footprint


@pytest.mark.parametrize("outline", [DENSE, EXPERTS])
@pytest.mark.parametrize("placement", [Placement(), Placement(experts=7), Placement(5), Placement(30, 18)])
def test_parts_are_the_whole(outline, placement):
    footprint = outline.footprint
    device, host = parts_of(footprint, placement)
    rules = replace(GPU, host=None)
    embedding = weight_bytes(replace(host, linears=(), experts=(), vector_values=0), rules)
    together = (
        weight_bytes(device, rules) + weight_bytes(host, rules) - (0 if placement.layers else embedding)
    )
    assert together == weight_bytes(footprint, rules)
    assert kv_bytes(device, GPU, 500) + kv_bytes(host, GPU, 500) == kv_bytes(footprint, GPU, 500)


def test_what_fits_is_not_divided():
    for outline in (DENSE, EXPERTS):
        room = Room(80 * GIB, None, HostRoom(64 * GIB))
        assert choose_split(outline.footprint, GPU, room) is None
        assert fit(outline.footprint, GPU, room).split is None


def test_experts_go_first_and_no_more_than_must():
    footprint = EXPERTS.footprint
    made = choose_split(footprint, GPU, Room(8 * GIB, None, HostRoom(64 * GIB)))
    assert made is not None and made.placement.layers == 0 < made.placement.experts < 48
    assert made.text == f"48 layers on the GPU, the experts of {made.placement.experts} on the processor"
    assert made.device_bytes + LOAD_MARGIN < 8 * GIB
    one_less = make_split(footprint, GPU, Placement(0, made.placement.experts - 1))
    left = 8 * GIB - one_less.device_bytes
    device, _ = parts_of(footprint, one_less.placement)
    narrow = replace(split_rules(GPU), kv_format="q8_0")
    assert left < kv_bytes(device, narrow, LEAST_CHAT) + LOAD_MARGIN + (1 << 30)


def test_layers_go_where_no_experts_are_left():
    made = choose_split(EXPERTS.footprint, GPU, Room(1300 << 20, None, HostRoom(64 * GIB)))
    assert made is not None and made.placement.layers > 0
    assert made.placement.layers + made.placement.experts == 48
    dense = choose_split(DENSE.footprint, GPU, Room(3 * GIB, None, HostRoom(64 * GIB)))
    assert dense is not None and dense.placement.experts == 0
    whole = dense.placement.layers
    assert dense.text == f"{36 - whole} of 36 layers on the GPU, {whole} on the processor"


def test_nothing_is_divided_where_that_is_forbidden_or_of_no_use():
    footprint = DENSE.footprint
    for room in (
        Room(3 * GIB),
        Room(3 * GIB, None, HostRoom(64 * GIB, 0)),
        Room(100 << 20, None, HostRoom(1)),
    ):
        assert choose_split(footprint, GPU, room) is None
        assert fit(footprint, GPU, room).verdict is Verdict.TOO_LARGE
    assert choose_split(footprint, replace(GPU, host=None), Room(3 * GIB, None, HostRoom(64 * GIB))) is None


@pytest.mark.parametrize(("wanted", "placement"), [(4, Placement(4)), (99, Placement(35))])
def test_a_number_of_layers_is_kept_to(wanted, placement):
    made = choose_split(DENSE.footprint, GPU, Room(80 * GIB, None, HostRoom(64 * GIB, wanted)))
    assert made is not None and made.placement == placement


def test_of_a_model_of_experts_a_number_means_their_layers():
    made = choose_split(EXPERTS.footprint, GPU, Room(80 * GIB, None, HostRoom(64 * GIB, 12)))
    assert made is not None and made.placement == Placement(0, 12)


def test_what_host_memory_lacks_is_said():
    made = fit(DENSE.footprint, GPU, Room(3 * GIB, None, HostRoom(2 * GIB)))
    assert made.verdict is Verdict.TOO_LARGE and made.split is not None and made.host_short > 0
    enough = fit(DENSE.footprint, GPU, Room(3 * GIB, None, HostRoom(32 * GIB)))
    assert enough.verdict is Verdict.FITS and enough.split is not None and not enough.host_short
    assert enough.weight_bytes == enough.split.device_bytes
