"""A twentieth of `tests.perf.facade_soak`."""

import pytest

from tests.perf.facade_soak import soak


@pytest.mark.parametrize("seed", [1, 2])
def test_random_use_of_the_facade_ends_every_request_once_and_holds_no_block(seed: int):
    assert "each ended once" in soak(60, seed)
