"""What all tests share: kernels are interpreted where there is no GPU, and a small model."""

import functools
import gc
import os
import sys
from pathlib import Path

import pytest

# More threads wait than there are processors: spinning they would take the time of those that compute.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is decorated, so before any kernel import
    if sys.platform == "linux":
        from tests.kernels import fast_interpreter

        fast_interpreter.install()


def pytest_collection_finish() -> None:
    """What is imported by now stays: the collector need not walk it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What one worker compiles for the processor the others find, unless a test names a folder of its own."""
    from kernels import machine_cache

    folder, keep_in = tmp_path_factory.getbasetemp().parent / "compiled", machine_cache.keep_in

    @functools.wraps(keep_in)
    def keep_together(named: Path | None) -> None:
        keep_in(folder if named is None else named)

    machine_cache.keep_in = keep_together
    keep_together(None)


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose passes cost next to nothing, with the built-in model's tokenizer."""
    from tests.support.small_model import make_small

    return make_small(tmp_path_factory.mktemp("small") / "small.gguf")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than processors: a quarter of a screen's test is waiting."""
    return (os.cpu_count() or 1) + 1
