"""How long the models of a full folder take to be listed, the first time and again.

    python -m tests.perf.listing --of model.gguf --of other.gguf --files 200

The files have the headers of those that are named and nothing behind them but their size.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import engine
from app.models.found import ModelSearch, find
from engine.gguf.file import open_gguf


def fill(folder: Path, models: list[Path], files: int) -> None:
    """Make as many files of these headers."""
    for number in range(files):
        model = models[number % len(models)]
        with open_gguf(model) as file:
            header = min(info.offset for info in file.tensors.values())
        path = folder / f"model-{number:03d}.gguf"
        with model.open("rb") as source, path.open("wb") as out:
            out.write(source.read(header))
            out.truncate(model.stat().st_size)


def main() -> None:
    """List twice and print both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--of", action="append", type=Path, required=True, help="a model (repeatable)")
    parser.add_argument("--files", type=int, default=200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "models").mkdir()
        fill(folder / "models", args.of, args.files)
        # What a program imports once is not a folder's cost.
        engine.summarize(args.of[0])
        search = ModelSearch((folder / "models",), (), folder / "cache")
        for what in ("cold", "kept"):
            wall, processor = time.perf_counter(), time.process_time()
            found = len(find(search))
            wall, processor = time.perf_counter() - wall, time.process_time() - processor
            print(f"{what}: {found} models in {wall:.2f} s, {processor:.2f} s of {os.cpu_count()} processors")


if __name__ == "__main__":
    main()
