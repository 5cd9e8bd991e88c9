"""The terminal is as it was, whichever way the app goes: left, killed, failed or suspended."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from app.terminal import osc

ROOT = Path(__file__).parents[3]
_ON = (b"\x1b[?1049h", b"\x1b[?1004h", b"\x1b[?2004h", b"\x1b[?1000h", b"\x1b[?25l")
_OFF = (b"\x1b[?1049l", b"\x1b[?1004l", b"\x1b[?2004l", b"\x1b[?1000l", b"\x1b[?25h")


class Terminal:
    """The program in a pseudo-terminal, and what it has written there."""

    def __init__(self, home, *arguments):
        self.main, other = pty.openpty()
        self.before = termios.tcgetattr(other)
        self.written = b""
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environ = os.environ | {"TUI_CHAT_HOME": str(home), "TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES"):
            environ.pop(name, None)
        self.program = subprocess.Popen(
            [sys.executable, "-m", "tests.app.terminal.child", *arguments],
            stdin=other,
            stdout=other,
            stderr=other,
            cwd=ROOT,
            env=environ,
            start_new_session=True,
        )
        self.other = other

    def until(self, condition):
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline, self.written[-2000:]
            if select.select([self.main], [], [], 0.05)[0]:
                self.written += os.read(self.main, 65536)

    def shows(self, text):
        self.until(lambda: text in self.written)

    def type(self, keys):
        os.write(self.main, keys)

    def ended(self):
        self.until(lambda: self.program.poll() is not None)
        return self.program.returncode

    def is_restored(self):
        """Everything that was switched on was switched off after it, and the lines are edited again."""
        off = all(self.written.rfind(end) > self.written.rfind(on) for on, end in zip(_ON, _OFF, strict=True))
        title = self.written.rfind(osc.BRING_TITLE_BACK.encode()) > self.written.rfind(b"\x1b]2;")
        return off and title and termios.tcgetattr(self.other)[:4] == self.before[:4]

    def close(self):
        if self.program.poll() is None:
            self.program.kill()
            self.program.wait()
        os.close(self.main)
        os.close(self.other)


@pytest.fixture
def start(tmp_path):
    made = []

    def begin(*arguments):
        made.append(Terminal(tmp_path, *arguments))
        made[-1].shows(b"- tui-chat\x1b\\")
        made[-1].shows(b"Pocket")
        return made[-1]

    yield begin
    for terminal in made:
        terminal.close()


def stopped(terminal):
    """Whether the program was suspended; asked without waiting."""
    pid, status = os.waitpid(terminal.program.pid, os.WUNTRACED | os.WNOHANG)
    return pid != 0 and os.WIFSTOPPED(status)


def test_suspended_and_killed(start):
    terminal = start()
    assert not terminal.is_restored()
    terminal.type(b"\x1a")
    terminal.until(lambda: stopped(terminal))
    terminal.until(terminal.is_restored)
    seen = len(terminal.written)
    terminal.program.send_signal(signal.SIGCONT)
    terminal.until(lambda: all(on in terminal.written[seen:] for on in _ON))
    terminal.type(b"still here")
    terminal.until(lambda: b"still here" in terminal.written[seen:])
    terminal.program.send_signal(signal.SIGTERM)
    assert terminal.ended() == 128 + signal.SIGTERM
    terminal.until(terminal.is_restored)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_ended_by_a_signal(start, number):
    terminal = start()
    terminal.program.send_signal(number)
    assert terminal.ended() == 128 + number
    terminal.until(terminal.is_restored)


def test_failed(start):
    terminal = start("--fail")
    terminal.type(b"\x1bOP")
    assert terminal.ended() == 1
    terminal.shows(b"made to fail")
    terminal.until(terminal.is_restored)
    assert b"Traceback" not in terminal.written


def test_the_mouse_and_another_size(start):
    terminal = start()
    seen = len(terminal.written)
    fcntl.ioctl(terminal.other, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 160, 0, 0))
    terminal.program.send_signal(signal.SIGWINCH)
    # There is room for the panel now, and for every key.
    terminal.until(lambda: b"All chats" in terminal.written[seen:] and b"F12" in terminal.written[seen:])
    seen = len(terminal.written)
    # The + behind the only tab.
    terminal.type(b"\x1b[<0;16;1M\x1b[<0;16;1m")
    terminal.until(lambda: terminal.written[seen:].count(b"New chat") >= 2)
    terminal.type(b"\x11")
    assert terminal.ended() == 0
    terminal.until(terminal.is_restored)
