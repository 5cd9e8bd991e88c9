"""Who shares a kernel's work: all threads or none, and none that nobody asks any more."""

import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("llvmlite")

import torch

from kernels.cpu.compiler import Emitter, Kernel, _machine, machine_code
from kernels.cpu.team import passing_team, threads_for


def tasks() -> set[str]:
    """Of this process's threads."""
    return {path.name for path in Path("/proc/self/task").iterdir()}


@pytest.fixture
def threads():
    """Three of them, whatever the computer has."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(before)


@pytest.mark.parametrize("pieces, expected", [(0, 1), (1, 1), (2, 3), (3, 3), (100, 3)])
def test_a_team_has_one_size(threads, pieces, expected):
    assert threads_for(pieces) == expected


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts threads in /proc")
def test_a_passing_team_leaves_no_threads(threads):
    kernel = Kernel(machine_code(Emitter("nothing").finish(), _machine()))
    new: set[str] = set()

    def work() -> None:
        before = tasks()
        with passing_team():
            kernel(threads)
            new.update(tasks() - before)
        while new & tasks():
            time.sleep(0.001)
        kernel(threads)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(60)
    assert not worker.is_alive() and len(new) >= threads - 1
