"""The GPU part of BENCHMARKS.md is what the script makes of the committed results."""

import json

import pytest

from tests.perf import render_benchmarks as script
from tests.perf.make_shapes import SHAPES

FIGURES = {
    "commit": "0123456789abcdef",
    "machine": {"name": "NVIDIA H200", "driver": "580.1"},
    "kernels": "triton",
    "kv_dtype": "float16",
    "versions": {"torch": "2.11"},
    "fallbacks": [],
    "new": 128,
    "prefill": [{"tokens": 2048, "tok_s": 25_000.0, "ttft_ms": 82.0}],
    "decode": [{"rows": 1, "depth": 0, "tok_s": 400.0}, {"rows": 8, "depth": 512, "tok_s": 2400.0}],
    "packed": {"prompts": 8, "tokens": 64, "tok_s": 20_000.0, "one_by_one_tok_s": 4000.0, "ratio": 5.0},
    "start": {"load_s": 2.5, "first_token_s": 4.0},
}


def test_the_document_is_what_the_script_makes():
    text = script.DOCUMENT.read_text()
    assert text == script.document(text, script.render(script.newest(script.RESULTS)))


def test_the_floor_of_8b_shapes_is_the_known_one():
    shapes = SHAPES["qwen3-8b"]
    assert script.step_bytes(shapes, "q4_k_m") == pytest.approx(4.67e9, rel=0.002)
    assert 2 * script.parameters(shapes) == pytest.approx(15.1e9, rel=0.005)
    assert script.prefill_cost(shapes, 2048).seconds == pytest.approx(41e-3, rel=0.03)
    result = script.Result("qwen3-8b", "q4_k_m", "2026-01-01", FIGURES)
    assert script.decode_cost(result, 1, 16_384 - 64).seconds * script.READ_BYTES_S == pytest.approx(
        script.step_bytes(shapes, "q4_k_m") + 16_384 * 147_456
    )


def test_the_newest_result_of_each_model_becomes_a_table(tmp_path):
    names = ("h200-qwen3-8b-q4_k_m-2026-01-02.json", "h200-qwen3-0.6b-q8_0-2026-01-01.json")
    for name in names:
        (tmp_path / name).write_text(json.dumps(FIGURES))
    (tmp_path / "h200-qwen3-8b-q4_k_m-2026-01-01.json").write_text("{}")
    text = script.render(script.newest(tmp_path))
    assert text.index("### qwen3-8b Q4_K_M (4.67 GB") < text.index("### qwen3-0.6b Q8_0")
    assert "| decode, 1 row, empty context | 262 | 400 | 1.53 | 4.68 GB | 1.06 ms | 42% |" in text
    assert "| decode, total of 8 rows, after 512 tokens | 912 | 2,400 | 2.63 |" in text
    assert "| prefill 2,048 | 9,942 | 25,000 | 2.51 |" in text
    assert "8 prompts of 64 at once (5.0x one by one) | – | 20,000 | – |" in text
    assert "commit 0123456789ab; triton, KV float16; on a slower implementation: nothing." in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert widths == {8}


@pytest.mark.parametrize("name", ["h200-qwen3-8b.json", "h200-unknown-q4_k_m-2026-01-01.json"])
def test_a_result_of_another_name_is_refused(name: str, tmp_path):
    (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match=name.removesuffix(".json")[:12]):
        script.newest(tmp_path)


def test_a_document_without_markers_is_refused():
    with pytest.raises(ValueError, match="no markers"):
        script.document("# Benchmarks\n", "part")
