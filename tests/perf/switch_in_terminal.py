"""Gaps of a streaming tab while another tab loads a model and wakes one, in the app in a terminal.

    python -m tests.perf.switch_in_terminal --model A.gguf --other B.gguf [--seconds 6]

The app runs in a pseudo-terminal with a home of its own and is driven by keys: the first tab writes with A
and is looked at; the second one switches to B, pauses it, and asks it again. A gap is the time between two
deliveries of text to the first tab, as the app itself sees them. The load average stands beside: on a
machine with other work the gaps are those of that work.
"""

import argparse
import fcntl
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from app.settings.paths import HOME_VARIABLE
from tests.perf.kv_disk import summary

_ROWS, _COLUMNS = 40, 140
_LOG = "TUI_CHAT_SWITCH_LOG"
_LONGEST = 180.0
_KEYS_PAUSE_S = 1.0
_QUESTION = "Write the numbers from 1 to 5000, one on each line, with no other words."
_SETTINGS = """[general]
confirm_close = false
[engine]
device = "cpu"
speculation = "off"
[sampling]
temperature = 0.0
[models]
folders = [{folders}]
"""


def inside() -> None:
    """Be the app, and note what its tabs get and what its engine moves."""
    from app.chat.session import ChatSession
    from app.cli.program import program
    from engine.engine import Engine

    lock = threading.Lock()
    out = Path(os.environ[_LOG]).open("a", encoding="utf-8")  # noqa: SIM115 - as long as the program

    def note(what: str, **more: object) -> None:
        with lock:
            out.write(json.dumps({"at": time.perf_counter(), "what": what} | more) + "\n")
            out.flush()

    def timed(name: str) -> None:
        work = getattr(Engine, name)

        def noted(engine: Engine, *args: Any, **options: Any) -> Any:
            note(f"{name} begins")
            try:
                return work(engine, *args, **options)
            finally:
                note(f"{name} ends")

        setattr(Engine, name, noted)

    for name in ("load", "wake_model", "pause_model"):
        timed(name)
    take = ChatSession._on_events

    def taken(session: ChatSession, answer: Any, generation: Any, events: Any) -> None:
        note("text", chat=session.conversation.id, tokens=len(events))
        take(session, answer, generation, events)

    ChatSession._on_events = taken  # type: ignore[method-assign]
    program()


class App:
    """The app in a terminal, its keys and its notes."""

    def __init__(self, home: Path, model: Path) -> None:
        self._log = home / "notes.jsonl"
        self._terminal, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        environment = os.environ | {HOME_VARIABLE: str(home), "TERM": "xterm-256color", _LOG: str(self._log)}
        command = [sys.executable, "-m", "tests.perf.switch_in_terminal", "--inside", "--model", str(model)]
        self._process = subprocess.Popen(command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while os.read(self._terminal, 1 << 16):
                pass
        except OSError:
            return

    def press(self, *keys: bytes) -> None:
        """Press keys one after another, as a person does who looks what each has done."""
        for key in keys:
            os.write(self._terminal, key)
            time.sleep(_KEYS_PAUSE_S)

    def notes(self) -> list[dict[str, Any]]:
        """What was noted so far."""
        if not self._log.exists():
            return []
        return [json.loads(line) for line in self._log.read_text().splitlines() if line.endswith("}")]

    def wait(self, what: str, count: int = 1) -> float:
        """Wait until something was noted so often; when that was."""
        until = time.monotonic() + _LONGEST
        while time.monotonic() < until:
            found = [note["at"] for note in self.notes() if note["what"] == what]
            if len(found) >= count:
                return float(found[count - 1])
            if self._process.poll() is not None:
                raise SystemExit(f"the app ended ({self._process.returncode}) before: {what}")
            time.sleep(0.1)
        raise SystemExit(f"not within {_LONGEST:.0f} s: {what}\n{self._complaints()}")

    def _complaints(self) -> str:
        """The end of the app's log."""
        logs = sorted(self._log.parent.glob("logs/*.log"))
        return "\n".join(line for log in logs for line in log.read_text(errors="replace").splitlines()[-20:])

    def end(self) -> None:
        """Leave the app."""
        os.write(self._terminal, b"\x11")
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()


def drive(app: App, other: Path, seconds: float) -> dict[str, tuple[float, float]]:
    """Let one tab write and the other one switch; returns the phases by their beginning and end."""
    app.wait("load ends")
    app.press(_QUESTION.encode(), b"\r")
    began = app.wait("text", 5)
    time.sleep(seconds)
    phases = {"before": (began, time.perf_counter())}
    app.press(b"\x14", b"\x0f", other.stem.encode(), b"\r", b"\x1b1")
    phases["load"] = (app.wait("load begins", 2), app.wait("load ends", 2))
    app.press(b"\x1b2", b"\x10", b"Pause model", b"\r")
    app.wait("pause_model ends")
    app.press(b"hello", b"\r", b"\x1b1")
    phases["wake"] = (app.wait("wake_model begins"), app.wait("wake_model ends"))
    time.sleep(seconds)
    app.press(b"\x1b2", b"\x1b", b"\x1b1")
    begun = time.perf_counter()
    time.sleep(seconds)
    phases["after"] = (begun, time.perf_counter())
    return phases


def gaps(notes: list[dict[str, Any]], begin: float, end: float) -> list[float]:
    """Milliseconds between deliveries to the first tab that wrote, of gaps that overlap a time."""
    first = next(note["chat"] for note in notes if note["what"] == "text")
    times = [note["at"] for note in notes if note.get("chat") == first and note["tokens"]]
    pairs = pairwise(times)
    return [(b - a) * 1e3 for a, b in pairs if b > begin and a < end]


def measure(model: Path, other: Path, seconds: float, say: Callable[[str], None]) -> None:
    """Print each phase."""
    home = Path(tempfile.mkdtemp())
    try:
        (home / "config").mkdir()
        folders = ", ".join(json.dumps(str(path.resolve().parent)) for path in (model, other))
        (home / "config" / "settings.toml").write_text(_SETTINGS.format(folders=folders), encoding="utf-8")
        app = App(home, model.resolve())
        try:
            phases = drive(app, other, seconds)
        finally:
            app.end()
        for name, (begin, end) in phases.items():
            say(f"{name:<7} {end - begin:5.1f} s  gaps in ms {summary(gaps(app.notes(), begin, end))}")
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
        say(f"load average {load} on {os.cpu_count()} processors")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def main() -> None:
    """Measure, or be the app that is measured."""
    if sys.argv[1:2] == ["--inside"]:
        del sys.argv[1]
        inside()
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="of the tab that writes")
    parser.add_argument("--other", type=Path, required=True, help="what the other tab switches to")
    parser.add_argument("--seconds", type=float, default=6.0, help="of the phases before and after")
    args = parser.parse_args()
    measure(args.model, args.other, args.seconds, print)


if __name__ == "__main__":
    main()
