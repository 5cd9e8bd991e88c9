"""Record the program in a pseudo-terminal: three chats that stream while a fourth reads a long text.

    python -m tests.perf.recording --out tests/pictures/tabs.cast [--model FILE]

The file is an asciicast (version 2, https://docs.asciinema.org/manual/asciicast/v2/): `asciinema play FILE`.
"""

import argparse
import json
import os
import pty
import selectors
import struct
import sys
import tempfile
import time
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

from app.settings.paths import HOME_VARIABLE

COLUMNS, ROWS = 140, 36
NEW_TAB, LEFT, ENTER, LEAVE = b"\x14", b"\x1b[5;5~", b"\r", b"\x11"
QUESTIONS = (
    "Tell me a long story about a fox and a lighthouse.",
    "Give me ten tips for sleeping better.",
    "Tell me a long story about the sea.",
)
LONG = "The harbour was quiet, and the boats lay still in the grey light of the morning. " * 60
PASTE = b"\x1b[200~", b"\x1b[201~"
KEY_S = 0.03


class Recording:
    """A program in a terminal of its own, and what it wrote with the seconds since its start."""

    def __init__(self, command: list[str], home: str) -> None:
        self.events: list[tuple[float, str, str]] = []
        self._started = time.monotonic()
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.environ |= {HOME_VARIABLE: home, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
            os.execv(command[0], command)
        ioctl(self._terminal, TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._terminal, selectors.EVENT_READ)
        self._rest = b""

    def watch(self, seconds: float) -> None:
        """Record for a while."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._selector.select(left):
                self._take(os.read(self._terminal, 1 << 16))

    def _take(self, chunk: bytes) -> None:
        """Characters that were cut in two come with their second half."""
        data = self._rest + chunk
        text = data.decode("utf-8", errors="ignore")
        self._rest = data[len(text.encode()) :]
        self.events.append((time.monotonic() - self._started, "o", text))

    def wait_for(self, word: str, seconds: float = 60.0) -> None:
        """Record until a word was written."""
        end = time.monotonic() + seconds
        while not any(word in text for _, _, text in self.events):
            if time.monotonic() > end:
                raise SystemExit(f"the program never wrote {word!r}")
            self.watch(0.1)

    def press(self, keys: bytes, seconds: float = 0.4) -> None:
        """Press keys and record what follows."""
        os.write(self._terminal, keys)
        self.watch(seconds)

    def say(self, text: str) -> None:
        """Write a message as a person does, and send it."""
        for char in text:
            self.press(char.encode(), KEY_S)
        self.press(ENTER)

    def end(self) -> None:
        """Leave the program."""
        os.write(self._terminal, LEAVE)
        try:
            while chunk := os.read(self._terminal, 1 << 16):
                self._take(chunk)
        except OSError:
            pass
        os.waitpid(self._pid, 0)


def play(recording: Recording) -> None:
    """What is shown."""
    recording.wait_for("Write a message")
    recording.watch(1.5)
    for question in QUESTIONS:
        recording.say(question)
        recording.press(NEW_TAB, 0.5)
    recording.press(PASTE[0] + f"Sum this up: {LONG}".encode() + PASTE[1])
    recording.press(ENTER, 1.5)
    for _ in QUESTIONS:
        recording.press(LEFT, 1.5)
    recording.watch(3.0)


def main() -> None:
    """Record, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", type=Path)
    args = parser.parse_args()
    command = [sys.executable, "-m", "app", *(["--model", str(args.model)] if args.model else [])]
    with tempfile.TemporaryDirectory() as home:
        recording = Recording(command, home)
        play(recording)
        last = recording.events[-1][0]
        recording.end()
    events = [event for event in recording.events if event[0] <= last]
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "tui-chat"}
    lines = [json.dumps(header), *(json.dumps([round(at, 3), kind, text]) for at, kind, text in events)]
    args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{args.out}: {last:.0f} s, {args.out.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
