"""Published numbers give what a real file of them takes, and bytes read a token; how fast memory is read."""

from dataclasses import replace

import pytest

from engine import Outline, read_bandwidth, read_bytes, summarize
from engine.device import bandwidth, free_memory
from engine.footprint.rules import DeviceRules, Holding, linear_bytes, weight_bytes
from tests.support.tiny_gguf import make_tiny

GPU = DeviceRules("cuda:0", "Acme 9", Holding.PLANES, 2, "bfloat16", 64, "GPU-1")
CPU = DeviceRules("cpu", "a processor", Holding.PACKED, 4, "float32", 32)
DENSE = Outline("Q8_0", 4, 256, 4, 2, 64, 2048, 4096, ffn=512)
SPARSE = replace(DENSE, experts=8, experts_used=2, expert_ffn=256, ffn=0)


def test_a_shape_takes_what_a_file_of_it_takes(tmp_path):
    sizes = {"layers": 3, "width": 256, "ffn": 512, "heads": 4, "kv_heads": 2, "head_dim": 64}
    path = make_tiny(tmp_path / "tiny.gguf", "llama", quant="Q8_0", **sizes)
    with_file = summarize(path)
    vocab = with_file.footprint.embedding.parts[0].rows
    tied = with_file.footprint.tied
    outline = Outline("Q8_0", vocab=vocab, context=with_file.context_length, tied=tied, **sizes)
    for rules in (GPU, CPU):
        assert weight_bytes(outline.footprint, rules) == pytest.approx(
            weight_bytes(with_file.footprint, rules), rel=0.03
        )
        assert read_bytes(outline.footprint, rules) == pytest.approx(
            read_bytes(with_file.footprint, rules), rel=0.03
        )
    assert outline.parameters == pytest.approx(with_file.parameters, rel=0.01)
    assert outline.file_bytes == pytest.approx(sum(with_file.type_bytes.values()), rel=0.03)


def test_a_token_reads_the_experts_that_it_uses():
    all_used = replace(SPARSE, experts_used=8).footprint
    few = read_bytes(SPARSE.footprint, GPU)
    experts = (read_bytes(all_used, GPU) - few) * 8 // 6
    assert experts == pytest.approx(4 * 8 * 3 * 256 * 256 * 17 / 16, rel=0.01)
    assert read_bytes(DENSE.footprint, GPU) < weight_bytes(DENSE.footprint, GPU)


def test_without_experts_a_token_reads_every_linear_layer():
    linears = DENSE.footprint.linears
    for rules in (CPU, replace(CPU, holding=Holding.DENSE)):
        assert read_bytes(DENSE.footprint, rules) == sum(n * linear_bytes(one, rules) for one, n in linears)


def test_rows_that_are_no_super_blocks_have_the_types_of_narrow_ones():
    wide, narrow = (replace(DENSE, type="Q4_K_M", width=width) for width in (256, 288))
    assert {part.type.name for one, _ in wide.footprint.linears for part in one.parts} == {"Q4_K", "Q6_K"}
    names = {
        part.type.name for one, _ in narrow.footprint.linears for part in one.parts if one.columns == 288
    }
    assert names == {"Q5_0", "Q8_0"}


def test_windows_hold_all_layers_but_every_so_manyth():
    groups = replace(DENSE, window=512, full_every=2).footprint.kv
    assert [(group.layers, group.window) for group in groups] == [(2, 0), (2, 512)]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"type": "Q9"}, "type must be one of"),
        ({"layers": -1}, "layers must be a whole number"),
        ({"tied": 1}, "tied must be true or false"),
        ({"widht": 1}, "unknown widht"),
        ({"width": 0}, "width is missing"),
        ({"ffn": 0}, "ffn or expert_ffn is missing"),
        ({"experts": 4, "experts_used": 5, "expert_ffn": 8}, "experts_used"),
    ],
)
def test_a_bad_field_is_named(wrong, said):
    good = {"type": "Q8_0", "layers": 1, "width": 64, "heads": 1, "kv_heads": 1, "head_dim": 64}
    good |= {"vocab": 100, "context": 512, "ffn": 64}
    assert Outline.from_data(good).layers == 1
    with pytest.raises(ValueError, match=said):
        Outline.from_data(good | wrong)


def test_a_processors_memory_is_read_for_a_moment():
    now = iter(range(100))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bandwidth, "_READ_BYTES", 1 << 16)
        patch.setattr(bandwidth.time, "perf_counter", lambda: next(now) / 100)
        # A pass of 64 KiB in one tick of the clock, 10 ms.
        assert read_bandwidth(CPU, 2) == pytest.approx((1 << 16) * 100)


class Driver:
    """NVML as far as it is asked; an H200's figures."""

    def __init__(self, fails=""):
        self.fails = fails

    def __getattr__(self, name):
        return lambda *_: int(name == self.fails)

    def nvmlDeviceGetMemoryBusWidth(self, _handle, width):
        width._obj.value = 6144
        return int(self.fails == "nvmlDeviceGetMemoryBusWidth")

    def nvmlDeviceGetMaxClockInfo(self, _handle, clock, megahertz):
        megahertz._obj.value = 3201 if clock == 2 else 1980
        return 0


def test_a_gpus_driver_says_how_fast_its_memory_is(monkeypatch):
    monkeypatch.setattr(free_memory.ctypes, "CDLL", lambda _: Driver())
    assert read_bandwidth(GPU, 4) == pytest.approx(4.917e12, rel=0.001)
    for fails in ("nvmlInit_v2", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetMemoryBusWidth"):
        monkeypatch.setattr(free_memory.ctypes, "CDLL", lambda _, fails=fails: Driver(fails))
        assert read_bandwidth(GPU, 4) is None
