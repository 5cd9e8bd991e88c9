"""Fixtures of the unit tests."""

from pathlib import Path

import pytest

from tests.small_model import make_small


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose passes cost next to nothing, with the built-in model's tokenizer."""
    return make_small(tmp_path_factory.mktemp("small") / "small.gguf")
