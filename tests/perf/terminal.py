"""What the app writes to its terminal while chats stream, and what it takes while nobody does anything.

`python -m tests.perf.terminal [--tabs 8] [--tok-s 500] [--seconds 10] [--size 120x40] [--idle 20] [--json]`.
The app runs in a pseudo-terminal of its own over an engine that a thread stands for, which writes code
into every tab; the bytes that it writes there are counted, and without an answer the processor time of the
whole process. Bars: at most 1 MB/s to the terminal, as over SSH; at most 0.5 % of a core while idle.
"""

import argparse
import contextlib
import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time

import psutil

from app.settings.file import Settings
from app.settings.paths import HOME_VARIABLE
from tests.support.fakes import FakeEngine, Streamer

_CODE = "def tern(wings: int) -> str:\n    return 'a bird' if wings == 2 else 'no bird'  # so\n\n"
_WORDS = ["```python\n", *[part + " " for part in _CODE.split(" ")] * 200, "\n```\n"]
_START_SECONDS = 120


def child(tok_s: float) -> int:
    """The app itself, in the terminal that it was started in."""
    import app.window.app as window

    engine = FakeEngine(context_length=1 << 20)
    window.engine_factory = lambda settings: lambda: engine
    window.map_torch_libraries = lambda: None
    with Streamer(engine, _WORDS, tok_s, 1 << 30):
        return window.run_app(Settings())


class Screen:
    """The program in a pseudo-terminal; counts what it writes."""

    def __init__(self, size: tuple[int, int], tok_s: float, home: str) -> None:
        self.main, other = pty.openpty()
        columns, rows = size
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.program = subprocess.Popen(
            [sys.executable, "-m", "tests.perf.terminal", "--child", str(tok_s)],
            stdin=other,
            stdout=other,
            stderr=other,
            env=os.environ | {HOME_VARIABLE: home, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
            start_new_session=True,
        )
        os.close(other)
        self.newest = b""

    def read(self, seconds: float) -> int:
        """Read for some seconds; return how many bytes came."""
        until, count = time.perf_counter() + seconds, 0
        while (left := until - time.perf_counter()) > 0:
            if select.select([self.main], [], [], left)[0]:
                piece = os.read(self.main, 1 << 16)
                count += len(piece)
                self.newest = (self.newest + piece)[-(1 << 16) :]
        return count

    def wait_for(self, text: bytes) -> None:
        until = time.perf_counter() + _START_SECONDS
        while text not in self.newest:
            assert time.perf_counter() < until, f"{text!r} never came"
            self.read(0.1)
        self.newest = b""

    def type(self, keys: bytes) -> None:
        os.write(self.main, keys)

    def end(self) -> None:
        self.program.terminate()
        # Reading fails once nobody has the other side open.
        with contextlib.suppress(OSError):
            while self.program.poll() is None:
                self.read(0.1)
        self.program.wait()
        os.close(self.main)


def idle_share(size: tuple[int, int], seconds: float) -> float:
    """Per cent of a core that the app takes while nothing happens."""
    with tempfile.TemporaryDirectory() as home:
        screen = Screen(size, 1.0, home)
        screen.wait_for(b"Pocket")
        # What is done once after the start, such as freezing garbage, is not what idling costs.
        screen.read(12.0)
        process = psutil.Process(screen.program.pid)
        before = process.cpu_times()
        started = time.perf_counter()
        screen.read(seconds)
        after, elapsed = process.cpu_times(), time.perf_counter() - started
        screen.end()
    return 100 * (after.user + after.system - before.user - before.system) / elapsed


def bytes_per_second(size: tuple[int, int], tabs: int, tok_s: float, seconds: float) -> float:
    """What is written to the terminal while every tab streams."""
    with tempfile.TemporaryDirectory() as home:
        screen = Screen(size, tok_s, home)
        screen.wait_for(b"Pocket")
        for number in range(tabs):
            if number:
                screen.type(b"\x14")
                screen.read(1.0)
            screen.type(b"Tell me of terns.\r")
            screen.wait_for(b"wings")
        screen.read(2.0)
        count = screen.read(seconds)
        screen.end()
    return count / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tabs", type=int, default=8)
    parser.add_argument("--tok-s", type=float, default=500.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--idle", type=float, default=20.0)
    parser.add_argument("--size", default="120x40")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        sys.exit(child(args.child))
    columns, rows = map(int, args.size.split("x"))
    size = columns, rows
    result = {
        "terminal_kb_s": bytes_per_second(size, args.tabs, args.tok_s, args.seconds) / 1e3,
        "idle_percent_of_a_core": idle_share(size, args.idle),
    }
    if args.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:<26}{value:>10.2f}")


if __name__ == "__main__":
    main()
