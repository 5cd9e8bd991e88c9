"""What the compilers make of every kernel, for GPUs that are not here: a table for people.

    python -m tests.perf.check_sass --targets sm_90,sm_86
    PYTHONPATH=FOLDER:. python -m tests.perf.check_sass      # another Triton, installed in FOLDER

Registers and local memory of a thread, shared memory of a program, and for quantised linears the
lane instructions for one weight. With `--check` what tests/kernels/compile_limits.py forbids is an
error, `--record` makes the instructions counted those that are allowed from now on. `--spread`
compiles each launch for one target only, as tests/kernels/cuda/test_compile.py does.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import cycle, islice, product

import triton

from tests.kernels.compile_limits import COUNTED_ON, problems, record
from tests.kernels.launches import Launch, launches
from tests.kernels.static_compile import (
    TARGETS,
    UNCOUNTED,
    Compiled,
    compiling,
    instructions_per_weight,
    resources,
)


def check(pairs: Iterable[tuple[str, str]]) -> Iterator[dict[str, object]]:
    """One entry for each kernel that the launches of (target, launch's name) need, or for an error."""
    known = {launch.name: launch for launch in launches()}
    for target, name in pairs:
        try:
            with compiling(target) as kernels:
                known[name].run()
            found = [_describe(kernel, known[name]) for kernel in kernels]
        except Exception as error:  # compilers raise errors of many kinds
            found = [{"kernel": "?", "error": _causes(error)}]
        for entry in found:
            yield {"target": target, "launch": name, **entry}


def _describe(kernel: Compiled, launch: Launch) -> dict[str, object]:
    needs = resources(kernel)
    entry: dict[str, object] = {
        "kernel": kernel.name,
        "warps": kernel.warps,
        "stages": kernel.stages,
        "registers": needs.registers,
        "stack": needs.stack,
        "shared": kernel.shared,
        "seconds": round(kernel.seconds, 2),
    }
    if launch.weights and kernel.target.startswith("sm_") and kernel.target not in UNCOUNTED:
        entry["per_weight"] = round(instructions_per_weight(kernel, kernel.constants["BM"]), 2)
    return entry


def _causes(error: BaseException | None) -> str:
    """The innermost cause, and where the outer ones were met."""
    texts: list[str] = []
    while error is not None:
        lines = str(error).strip().splitlines() or [""]
        texts.insert(0, f"{type(error).__name__}: {lines[-1].strip()}")
        error = error.__cause__ or error.__context__
    return "; ".join(dict.fromkeys(texts))


def main() -> None:
    """Read the arguments and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", default=",".join(TARGETS), help="default: all")
    parser.add_argument("--launch", default="", help="only launches whose name contains this")
    parser.add_argument("--spread", action="store_true", help="each launch for one target in turn")
    parser.add_argument("--shares", type=int, default=1, help="processes that divide the work")
    parser.add_argument("--share", type=int, default=0, help="which of them this one is")
    parser.add_argument("--check", action="store_true", help="fail on what is over the limits")
    parser.add_argument("--record", action="store_true", help="keep the counts as those allowed")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.record:
        counted = [launch.name for launch in launches() if launch.weights]
        entries = list(check((COUNTED_ON, name) for name in counted))
        if wrong := [str(entry["error"]) for entry in entries if "error" in entry]:
            sys.exit("\n".join(wrong))
        record(entries, triton.__version__)
        return
    targets = args.targets.split(",")
    chosen = [launch for launch in launches() if args.launch in launch.name]
    every = _spread(chosen) if args.spread else product(targets, [launch.name for launch in chosen])
    pairs = islice(every, args.share, None, args.shares)
    if not args.json:
        print(f"Triton {triton.__version__}")
    over: list[str] = []
    for entry in check(pairs):
        over += problems(entry, triton.__version__)
        print(json.dumps(entry) if args.json else _line(entry), flush=True)
    if args.check and over:
        sys.exit("\n".join(over))


def _spread(chosen: Iterable[Launch]) -> Iterator[tuple[str, str]]:
    """Each launch with one target in turn, but with the quickest where compilers take long."""
    turn = cycle(TARGETS)
    for launch in chosen:
        if not launch.sibling:
            target = launch.target or ("sm_90" if launch.slow else next(turn))
            yield target, launch.name


def _line(entry: Mapping[str, object]) -> str:
    named = f"{entry['target']:8} {entry['launch']:40} {entry['kernel']:24}"
    if "error" in entry:
        return f"{named} {entry['error']}"
    weight = f" {entry['per_weight']:5.2f} instructions a weight" if "per_weight" in entry else ""
    return (
        f"{named} {entry['seconds']:5.1f} s warps {entry['warps']:2} stages {entry['stages']} "
        f"registers {entry['registers']:3} stack {entry['stack']:4} shared {entry['shared']:6}{weight}"
    )


if __name__ == "__main__":
    main()
