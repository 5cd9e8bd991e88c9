import tracemalloc

from tests.support.gguf_fuzz import fuzz


def test_damaged_headers_are_accepted_or_refused(tmp_path):
    tracemalloc.start()
    try:
        accepted = fuzz(tmp_path, 1000, seed=7)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0 < accepted < 500
    assert peak < 16 << 20
