"""The same kernel tests run at real shapes on a GPU and at small ones under Triton's interpreter."""

import os
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session")
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="session")
def full(device: str) -> bool:
    """Whether real shapes are affordable."""
    return device == "cuda"


INTERPRETED_CASES = 2
"""Cases of each parametrised test that run where kernels are interpreted, unless all are asked for
with TUI_CHAT_ALL_KERNEL_CASES=1: a case takes seconds there and milliseconds on a GPU."""


PLAIN_ROOMS = ("cpu", "pieces", "quant", "reference")
"""Rooms whose tests need no interpreter."""

COMPILED = "test_compile.py"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run first what waits for compilers, which another worker's tests run beside; keep the first and the
    last case of each test without a GPU."""
    items.sort(key=lambda item: item.path.name != COMPILED)
    if torch.cuda.is_available() or os.environ.get("TUI_CHAT_ALL_KERNEL_CASES") == "1":
        return
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.path.parent.parent == Path(__file__).parent and item.path.parent.name not in PLAIN_ROOMS:
            groups.setdefault(item.nodeid.split("[")[0], []).append(item)
    left_out = {id(item) for cases in groups.values() for item in cases[1 : 1 - INTERPRETED_CASES]}
    config.hook.pytest_deselected(items=[item for item in items if id(item) in left_out])
    items[:] = [item for item in items if id(item) not in left_out]
