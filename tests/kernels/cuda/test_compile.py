"""Kernels compile for GPUs that are not here, with their values in registers and few instructions.

Every launch is compiled for one target, and every target takes its share of them;
`python -m tests.perf.check_sass --check` compiles all for all.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import triton

from tests.kernels.compile_limits import problems
from tests.kernels.compilers import Compilers
from tests.kernels.launches import launches
from tests.kernels.static_compile import TARGETS

KERNELS = Path(__file__).parents[3] / "kernels"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton's compilers are for Linux")


@pytest.fixture(scope="module")
def entries() -> Iterator[list[dict]]:
    compilers = Compilers()
    try:
        yield compilers.entries()
    finally:
        compilers.close()


def test_every_launch_compiles_and_every_target_has_its_share(entries: list[dict]):
    wanted = {launch.name for launch in launches() if not launch.sibling}
    assert {entry["launch"] for entry in entries} == wanted
    assert {entry["target"] for entry in entries} == set(TARGETS)


def test_every_kernel_is_among_the_launches(entries: list[dict]):
    launched = set()
    for path in KERNELS.rglob("*.py"):
        launched |= set(re.findall(r"^\s+(\w+)\[\(", path.read_text(), re.MULTILINE))
    assert launched and launched <= {entry["kernel"] for entry in entries}


def test_nothing_spills_and_weights_cost_few_instructions(entries: list[dict]):
    assert [problem for entry in entries for problem in problems(entry, triton.__version__)] == []
