"""Fixtures of all tests."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose passes cost next to nothing, with the built-in model's tokenizer."""
    from tests.support.small_model import make_small

    return make_small(tmp_path_factory.mktemp("small") / "small.gguf")
