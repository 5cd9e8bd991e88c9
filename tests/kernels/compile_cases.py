"""What `kernels.cuda.compile` asks compilers for, where no GPU is: run without Triton's interpreter.

Prints as JSON the kernels that were compiled, the threads that did it, and what happened to an error.
"""

import json
import threading
import time

import torch
import triton
import triton.language as tl
from triton import knobs
from triton.compiler.compiler import ASTSource
from triton.runtime import driver
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.cuda.compile import compile_together
from tests.kernels.static_compile import CompilingDriver


@triton.jit
def add(x, out, count, SIZE: tl.constexpr):
    place = tl.arange(0, SIZE)
    tl.store(out + place, tl.load(x + place, mask=place < count) + 1, mask=place < count)


@triton.jit
def copy(x, SIZE: tl.constexpr):
    x.store([SIZE, 0], x.load([0, 0]))


@triton.jit
def wrong(x, SIZE: tl.constexpr):
    tl.static_assert(SIZE == 3, "cannot be compiled")


def launches() -> None:
    """Seven kernels, some of them asked for many times."""
    x = torch.zeros(64)
    for _ in range(50):
        add[(1,)](x, x, 64, SIZE=64)
        add[(2,)](x, x, 32, SIZE=64)
    add[(1,)](x, x, 1, SIZE=64)
    add[(1,)](x[1:], x, 64, SIZE=64)
    add[(1,)](x.half(), x, 64, SIZE=64)
    add[(1,)](x, x, 64, 32)
    square = torch.zeros(64, 64)
    for rows in (16, 16, 32):
        copy[(1,)](TensorDescriptor.from_tensor(square, [rows, 64]), SIZE=16)


def twice(made: list[tuple[str, bool]]) -> tuple[int, list[float]]:
    """A kernel that two threads ask for: how often it is compiled, and that the second waits for it."""
    compiling, asked = threading.Event(), threading.Event()

    def listen(*, src, cache_hit, **_):
        made.append((src.fn.__name__, cache_hit))
        compiling.set()
        assert asked.wait(60)

    def launch() -> None:
        add[(1,)](torch.zeros(128), torch.zeros(128), 128, SIZE=128)

    def launch_late() -> None:
        launch()
        asked.set()

    before, parts = len(made), []
    knobs.compilation.listener = listen
    first = threading.Thread(target=compile_together, args=(launch,))
    first.start()
    assert compiling.wait(60)
    compile_together(launch_late, parts.append)
    first.join()
    return len(made) - before, parts


def count_parsers() -> list[int]:
    """How many threads parse at each beginning of that."""
    parse, active, seen = ASTSource.make_ir, [], []

    def counted(self: ASTSource, *args: object) -> object:
        active.append(self)
        seen.append(len(active))
        # Others that may begin do so now.
        time.sleep(0.01)
        active.remove(self)
        return parse(self, *args)

    ASTSource.make_ir = counted
    return seen


def main() -> None:
    """Compile, fail to, and find everything compiled."""
    driver.set_active(CompilingDriver("sm_90"))
    parsers = count_parsers()
    made: list[tuple[str, bool]] = []
    threads: set[str] = set()

    def listen(*, src, cache_hit, **_):
        made.append((src.fn.__name__, cache_hit))
        threads.add(threading.current_thread().name)

    knobs.compilation.listener = listen
    parts: list[float] = []
    compile_together(launches, parts.append)
    first = len(made)
    compile_together(lambda: wrong[(1,)](torch.zeros(4), SIZE=4))
    error = ""
    try:
        wrong[(1,)](torch.zeros(4), SIZE=4)
    except Exception as raised:
        error = str(raised)
    compile_together(launches)
    print(
        json.dumps(
            {
                "names": [name for name, _ in made[:first]],
                "again": len(made) - first,
                "threads": sorted(threads),
                "parsers": parsers[:first],
                "progress": parts,
                "error": error,
                "twice": twice(made),
            }
        )
    )


if __name__ == "__main__":
    main()
