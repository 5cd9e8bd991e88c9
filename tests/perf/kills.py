"""How much of an answer a kill costs, and whether the history is whole afterwards.

`python -m tests.perf.kills [--repeat 30] [--seed N]`. Each time the app runs in a terminal of its own with
the built-in model, writes in two tabs, and is killed at some moment. What had come into the chats by then,
which the process notes beside the history, is compared with what a new start reads. Bars: at most 0.5 s of
text lost, PRAGMA integrity_check ok, no half rows. Exit code 1 where one is missed.
"""

import argparse
import contextlib
import fcntl
import json
import os
import pty
import random
import signal
import sqlite3
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path
from typing import Any

from app.chat.conversation import Conversation, Status
from app.history.store import HistoryStore
from app.settings.paths import HOME_VARIABLE

LOST_BAR_S = 0.5
_SETTINGS = '[general]\nrestore_tabs = false\n[engine]\ndevice = "cpu"\n[sampling]\ntemperature = 1.0\n'
_LONGEST = 90.0
_ODD_ROWS = {
    "messages without their chat": "conversation NOT IN (SELECT id FROM conversations)",
    "messages without the one before": "parent IS NOT NULL AND parent NOT IN (SELECT id FROM messages)",
    "messages with half a token id": "length(token_ids) % 4 <> 0",
    "answers with text and no token ids": "role = 'assistant' AND text <> '' AND length(token_ids) = 0",
}


def run_noting(notes: Path) -> int:
    """Run the app; note every growth of an answer, in the kernel's hands before it is anywhere else."""
    from app.cli.program import main

    note = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    append = HistoryStore.append

    def noting(store: HistoryStore, conversation: Conversation, node_id: str) -> None:
        node = conversation.nodes[node_id]
        entry = [time.monotonic(), conversation.id, node_id, node.reasoning + node.text]
        os.write(note, json.dumps(entry).encode() + b"\n")
        append(store, conversation, node_id)

    HistoryStore.append = noting  # type: ignore[assignment, method-assign]
    return main([])


def run_and_kill(home: Path, notes: Path, seconds: float) -> float:
    """Start the app, ask in two tabs, and kill it so long after the first text; return when that was."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
    environment = os.environ | {HOME_VARIABLE: str(home), "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "tests.perf.kills", "--child", str(notes)]
    process = subprocess.Popen(command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    painted = threading.Event()
    threading.Thread(target=_drain, args=(ours, painted), daemon=True).start()
    try:
        if not painted.wait(_LONGEST):
            raise RuntimeError("nothing was painted")
        for keys in (b"Tell me a long story.\r", b"\x14", b"Tell me another story.\r"):
            os.write(ours, keys)
            time.sleep(0.3)
        deadline = time.monotonic() + _LONGEST
        while not (notes.exists() and notes.stat().st_size) and process.poll() is None:
            if time.monotonic() > deadline:
                raise RuntimeError("no text came")
            time.sleep(0.01)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            # What ends early is asked for again; while an answer is written this waits its turn.
            os.write(ours, b"And then?\r")
            time.sleep(min(0.7, max(0.0, end - time.monotonic())))
        if process.poll() is not None:
            raise RuntimeError(f"the app ended with {process.returncode}")
        killed = time.monotonic()
        process.send_signal(signal.SIGKILL)
        process.wait()
        return killed
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _drain(terminal: int, painted: threading.Event) -> None:
    with contextlib.suppress(OSError):
        seen = b""
        while part := os.read(terminal, 1 << 16):
            seen = (seen + part)[-(1 << 16) :] if not painted.is_set() else b""
            if b"Write a message" in seen:
                painted.set()


def read_notes(notes: Path) -> dict[tuple[str, str], list[tuple[float, str]]]:
    """Return, for every answer, its text after each growth."""
    growths: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for line in notes.read_text().splitlines():
        moment, conversation_id, node_id, text = json.loads(line)
        growths.setdefault((conversation_id, node_id), []).append((moment, text))
    return growths


def lost(home: Path, notes: Path, killed: float) -> dict[str, Any]:
    """Compare what had come with what is kept."""
    file = home / "data" / "history.db"
    problems = []
    store = HistoryStore(file)
    worst, characters, chats = 0.0, 0, 0
    for (conversation_id, node_id), growths in read_notes(notes).items():
        conversation = store.load(conversation_id)
        node = conversation.nodes.get(node_id) if conversation is not None else None
        kept = node.reasoning + node.text if node is not None else ""
        whole = growths[-1][1]
        if node is not None and node.status is Status.STREAMING:
            problems.append("an answer that still streams")
        # At the end of an answer comes what was held back; it is no growth that was noted.
        if not whole.startswith(kept) and not kept.startswith(whole):
            problems.append("text that never came")
        late = [moment for moment, text in growths if len(text) > len(kept)]
        worst = max(worst, killed - late[0] if late else 0.0)
        characters += max(0, len(whole) - len(kept))
        chats += 1
    problems += store.standing + store.notices
    store.close()
    with contextlib.closing(sqlite3.connect(file)) as connection:
        check = connection.execute("PRAGMA integrity_check").fetchone()[0]
        problems += [check] if check != "ok" else []
        for words, condition in _ODD_ROWS.items():
            number = connection.execute(f"SELECT count(*) FROM messages WHERE {condition}").fetchone()[0]
            problems += [f"{number} {words}"] if number else []
    return {"lost_s": worst, "lost_characters": characters, "answers": chats, "problems": problems}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        return run_noting(args.child)
    chance = random.Random(args.seed)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "config").mkdir()
        (home / "config" / "settings.toml").write_text(_SETTINGS)
        for number in range(args.repeat):
            notes = home / f"notes-{number}"
            seconds = chance.uniform(0.0, 4.0)
            result = lost(home, notes, run_and_kill(home, notes, seconds))
            results.append(result)
            print(json.dumps({"after_s": round(seconds, 2)} | result), flush=True)
    times = [result["lost_s"] for result in results]
    problems = [problem for result in results for problem in result["problems"]]
    print(f"lost: median {statistics.median(times):.3f} s, most {max(times):.3f} s (bar {LOST_BAR_S} s)")
    print(f"problems: {problems or 'none'}")
    return int(max(times) > LOST_BAR_S or bool(problems))


if __name__ == "__main__":
    sys.exit(main())
