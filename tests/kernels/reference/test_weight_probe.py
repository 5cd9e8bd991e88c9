"""When bfloat16 is worth a probe, and that a computer is probed once."""

from pathlib import Path

import pytest
import torch

from kernels import machine_cache
from kernels.reference import weight_probe

CPU = torch.device("cpu")
UNITS = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")


class Probe:
    """Counts measurements; bfloat16 comes out `advantage` times as fast."""

    def __init__(self) -> None:
        self.count = 0
        self.advantage = 2.0

    def seconds(self, _rows):
        self.count += 1
        return [1.0, 1.0], [1.0 / self.advantage] * 2


@pytest.fixture
def probe(monkeypatch):
    made = Probe()
    monkeypatch.setattr(weight_probe, "_seconds", made.seconds)
    monkeypatch.setattr(weight_probe.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(machine_cache, "_folder", None)
    return made


@pytest.fixture
def kept(probe, monkeypatch, tmp_path):
    """A folder, and a processor that is probed."""
    monkeypatch.setattr(machine_cache, "_folder", tmp_path / "kernels")
    monkeypatch.setattr(weight_probe, "_emulates_bfloat16", lambda: False)
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("torch has no bfloat16 products here")
    return tmp_path / "kernels"


def fastest():
    return weight_probe.fastest_weight_dtype.__wrapped__(CPU)


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_a_processor_that_emulates_it_is_not_probed(probe, monkeypatch):
    for name in UNITS:
        monkeypatch.setattr(torch.cpu, name, lambda: False)
    assert fastest() is torch.float32 and probe.count == 0


@pytest.mark.parametrize("unit", UNITS)
def test_a_processor_that_has_it_is_probed(probe, monkeypatch, unit):
    for name in UNITS:
        monkeypatch.setattr(torch.cpu, name, lambda there=name == unit: there)
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("torch has no bfloat16 products here")
    assert fastest() is torch.bfloat16 and probe.count == 1


@pytest.mark.parametrize(("first", "then"), [(2.0, 1.0), (1.0, 2.0)])
def test_a_later_start_takes_the_type_of_the_first(kept, probe, first, then):
    probe.advantage = first
    chosen = fastest()
    probe.advantage = then
    assert fastest() is chosen and probe.count == 1


def test_without_a_folder_every_start_measures(probe, kept, monkeypatch):
    monkeypatch.setattr(machine_cache, "_folder", None)
    assert fastest() is fastest() is torch.bfloat16 and probe.count == 2


@pytest.mark.parametrize("what", ["_processor", "torch", "threads"])
def test_another_computer_library_or_number_of_threads_is_measured(kept, probe, monkeypatch, what):
    fastest()
    probe.advantage = 1.0
    if what == "_processor":
        monkeypatch.setattr(weight_probe, "_processor", lambda: ["another"])
    elif what == "torch":
        monkeypatch.setattr(torch, "__version__", "0.1")
    else:
        monkeypatch.setattr(torch, "get_num_threads", lambda: 61)
    assert fastest() is torch.float32 and probe.count == 2


def test_a_damaged_entry_is_measured_again(kept, probe):
    fastest()
    path = only_file(kept)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    probe.advantage = 1.0
    assert fastest() is torch.float32 and probe.count == 2
    assert fastest() is torch.float32 and probe.count == 2


def test_an_entry_that_names_no_known_type_is_measured_again(kept, probe):
    machine_cache.keep(weight_probe._surroundings(weight_probe.FEW_AND_MANY_ROWS), b"float8")
    assert fastest() is torch.bfloat16 and probe.count == 1


def test_what_is_fast_for_many_rows_is_measured_apart(kept, probe):
    assert fastest() is torch.bfloat16
    probe.advantage = 1.0
    many = weight_probe.fastest_weight_dtype.__wrapped__(CPU, weight_probe.MANY_ROWS)
    assert many is torch.float32 and probe.count == 2


def test_a_folder_that_cannot_be_written_still_measures(kept, probe, monkeypatch):
    kept.write_text("")
    assert fastest() is torch.bfloat16 and probe.count == 1


def test_a_probe_times_both_types_at_every_row_count():
    wide, narrow = weight_probe._seconds((1, 64, 20))
    assert len(wide) == len(narrow) == 3
    assert all(0 < seconds < 10 for seconds in (*wide, *narrow))
