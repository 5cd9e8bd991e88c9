"""The comparison with llama.cpp: medians, ratios and tables (the programs themselves are not run)."""

import pytest

from tests.perf.compare_llamacpp import medians, model_sizes, speed_table, stall_table
from tests.support.tiny_gguf import make_tiny


def test_medians_are_taken_per_figure():
    rounds = [{"decode 1": speed, "prefill 512": 10 * speed} for speed in (5.0, 1.0, 3.0)]
    assert medians(rounds) == {"decode 1": 3.0, "prefill 512": 30.0}


def test_the_table_holds_ratios_and_growth_with_rows():
    ours = {"decode 1": 100.0, "decode 8": 400.0, "prefill 512": 1000.0}
    theirs = {"decode 8": 200.0, "decode 1": 100.0, "prefill 512": 2000.0}
    lines = speed_table(ours, theirs).splitlines()
    assert "| decode 8 | 400 | 200 | 2.00 |" in lines
    assert "| prefill 512 | 1,000 | 2,000 | 0.50 |" in lines
    assert "| 8 rows over 1 | 4.00x | 2.00x | |" in lines


def test_the_stall_table_holds_both_ratios():
    side = {"rows": 4, "idle_ms": {"p50": 10.0, "p99": 20.0}, "ttft_ms": 1500.0}
    side["loaded_ms"] = {"p50": 20.0, "p99": 40.0, "max": 50.0}
    worse = side | {"loaded_ms": {"p50": 20.0, "p99": 1000.0, "max": 1500.0}}
    ours, theirs = stall_table(side, worse, 1500).splitlines()[2:]
    assert "2.0x" in ours and "50.0x" in theirs
    assert len({line.count("|") for line in stall_table(side, worse, 1500).splitlines()}) == 1


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_sizes_come_from_the_file(arch: str, tmp_path):
    assert model_sizes(make_tiny(tmp_path / "a.gguf", arch, context_length=256)) == (384, 256)
