"""Kernels that are compiled before they are launched."""

import json
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl

from kernels.cuda.compile import _Compilers, compile_together
from tests.kernels.compilers import without_interpreter


@triton.jit
def mark(x, VALUE: tl.constexpr):
    tl.store(x + tl.program_id(0), VALUE)


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> dict:
    """What `tests.kernels.compile_cases` says, with nothing compiled before."""
    environment = without_interpreter() | {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compile_cases"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="compiles for a GPU that is not there")


@without_gpu
def test_each_kernel_is_compiled_once_by_a_thread_of_its_own(report):
    assert sorted(report["names"]) == ["add"] * 5 + ["copy"] * 2
    assert len(report["threads"]) > 1 and all(name.startswith("compiler") for name in report["threads"])
    assert report["progress"] == [index / 7 for index in range(7)]


@without_gpu
def test_kernels_are_parsed_one_at_a_time(report):
    """Parsing holds the interpreter, which passes beside it need."""
    assert report["parsers"] == [1] * 7


@without_gpu
def test_a_kernel_that_cannot_be_compiled_is_told_where_it_is_launched_and_others_can_be_after(report):
    assert "cannot be compiled" in report["error"]
    assert report["again"] == 0, "what was compiled is kept"


@without_gpu
def test_what_is_being_compiled_is_waited_for(report):
    assert report["twice"] == [1, [0.0]]


def test_each_gpu_has_a_kernel_compiled_for_it(monkeypatch):
    """One that another GPU waits for is none of its own."""
    gpus, both, made = iter((0, 1)), threading.Barrier(2, timeout=60), []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: next(gpus))
    monkeypatch.setattr(torch.cuda, "set_device", lambda gpu: made.append(gpu))

    def build():
        both.wait()
        return SimpleNamespace(run=True)

    with _Compilers() as first, _Compilers() as second:
        for compilers in (first, second):
            compilers.ask("a kernel", lambda compilers=compilers: compilers.submit(build))
        assert first.awaited[0].result(60) and second.awaited[0].result(60)
        assert first.awaited[0] is not second.awaited[0]
    assert sorted(made) == [0, 1]


def test_what_is_compiled_is_not_run_and_later_launches_are(device):
    x = torch.zeros(3, device=device)
    compile_together(lambda: mark[(3,)](x, VALUE=5.0))
    interpreted = device == "cpu"
    assert x.tolist() == [5.0 * interpreted] * 3, "an interpreter has no compilers and just runs"
    mark[(2,)](x, VALUE=7.0)
    assert x.tolist() == [7.0, 7.0, 5.0 * interpreted]
