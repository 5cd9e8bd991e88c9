"""Seconds from the command to the first paint, and to a whole short answer of the built-in model.

`python -m tests.perf.launch [--repeat 10] [--cold] [--against DIR] [--json]`. Every launch has a terminal of
its own and a new home that keeps the compiled kernels of the launches before it (`--cold`: none); "hello" is
typed as soon as the composer is painted, with a fixed seed. `--against` launches another checkout in turn.
Bars: first paint ≤ 1.0 s, answer ≤ 4 s. `cpu` is processor time, user and system.
"""

import argparse
import fcntl
import json
import os
import pty
import re
import select
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

from app.settings.paths import HOME_VARIABLE

_ROWS, _COLUMNS = 40, 140
_STYLES = re.compile(rb"\x1b\[[0-9;?<>=]*[a-zA-Z~]")
_PAINTED, _ANSWERED = b"Write a message", b"first after"
_LONGEST = 90.0
_SETTINGS = '[sampling]\nseed = 7\n[engine]\ndevice = "cpu"\n'


def launch(checkout: Path, home: Path) -> dict[str, float]:
    """Start the app of a checkout, ask, and end it once the answer is there."""
    shutil.rmtree(home / "data", ignore_errors=True)
    (home / "config").mkdir(parents=True, exist_ok=True)
    (home / "config" / "settings.toml").write_text(_SETTINGS, encoding="utf-8")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
    environment = os.environ | {HOME_VARIABLE: str(home), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    # An installed program has bytecode; without it a third of the way to the first paint is compiling.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    started = time.perf_counter()
    command = [sys.executable, "-m", "app"]
    process = subprocess.Popen(
        command, cwd=checkout, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    result: dict[str, float] = {}
    try:
        _read_until(ours, _PAINTED, started)
        result |= {"paint": time.perf_counter() - started, "paint_cpu": _cpu(process.pid)}
        os.write(ours, b"hello\r")
        _read_until(ours, _ANSWERED, started)
        result |= {"answer": time.perf_counter() - started, "answer_cpu": _cpu(process.pid)}
        os.write(ours, b"\x11")
        _read_until(ours, None, started)
        process.wait(_LONGEST)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return result


def _read_until(terminal: int, words: bytes | None, started: float) -> None:
    """Read what the app writes until `words` were among it; None: until it has ended."""
    seen = b""
    while time.perf_counter() - started < _LONGEST:
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            part = os.read(terminal, 1 << 16)
        except OSError:
            part = b""
        if not part:
            if words is None:
                return
            raise RuntimeError(f"the app ended: {_STYLES.sub(b'', seen)[-500:]!r}")
        seen = (seen + part)[-(1 << 17) :]
        if words is not None and words in _STYLES.sub(b"", seen):
            return
    raise RuntimeError(f"{words!r} did not come: {_STYLES.sub(b'', seen)[-500:]!r}")


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    checkouts = {"this": Path(__file__).parents[2]} | ({"other": args.against} if args.against else {})
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(-1, args.repeat):
            for name, checkout in checkouts.items():
                home = Path(folder) / name
                if args.cold:
                    shutil.rmtree(home, ignore_errors=True)
                result = launch(checkout, home)
                if number >= 0:
                    runs[name].append(result)
    if args.json:
        print(json.dumps(runs))
        return
    for name, results in runs.items():
        for key in results[0]:
            values = sorted(result[key] for result in results)
            quartile = values[len(values) // 4]
            print(
                f"{name:<6}{key:<12}least {values[0]:5.2f}  quartile {quartile:5.2f}"
                f"  median {statistics.median(values):5.2f}  most {values[-1]:5.2f}"
            )


if __name__ == "__main__":
    main()
