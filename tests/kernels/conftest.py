"""The same kernel tests run at real shapes on a GPU and at small ones under Triton's interpreter."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is decorated, so before any kernel import


@pytest.fixture(scope="session")
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="session")
def full(device: str) -> bool:
    """Whether real shapes are affordable."""
    return device == "cuda"
