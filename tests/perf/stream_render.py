"""What drawing a stream costs: UI CPU, event loop lag, opening a long chat, resizing it.

Run as `python -m tests.perf.stream_render [--seconds N] [--rate CHARS]`; exit code 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass

from textual.app import App, ComposeResult
from textual.events import Resize
from textual.geometry import Size
from textual.selection import SELECT_ALL

from app.transcript.view import MessageView, Transcript

CPU_BAR, LAG_BAR_MS, OPEN_BAR_MS, RESIZE_BAR_MS = 25.0, 16.0, 150.0, 100.0
SENTENCE = "the scheduler packs **every** waiting prompt into `one batch` and *never* stalls a running row"
WORDS = SENTENCE.split()


def prose(paragraphs: int = 400) -> str:
    """Paragraphs with inline markdown."""
    return "\n\n".join(
        " ".join(WORDS[(i * 7 + j) % len(WORDS)] for j in range(70)) for i in range(paragraphs)
    )


def code(lines: int = 2000) -> str:
    """One fence of Python."""
    body = "\n".join(
        f"    value_{i} = compute({i}, 'text', key=[x for x in range({i})])" for i in range(lines)
    )
    return f"Here it is:\n\n```python\ndef main():\n{body}\n```\n"


def bullets(items: int = 500) -> str:
    """One long list with nesting."""
    return "".join(
        f"{'  ' * (i % 3)}- item {i} with **bold**, `code` and some more text\n" for i in range(items)
    )


def table(rows: int = 300) -> str:
    """One long table."""
    head = "| number | name | note |\n|---:|:---|:---|\n"
    return head + "".join(f"| {i} | name *{i}* | a note about row {i} 中文 |\n" for i in range(rows))


DOCUMENTS = {"prose": prose, "code": code, "list": bullets, "table": table}


class TranscriptApp(App[None]):
    """A transcript alone."""

    def compose(self) -> ComposeResult:
        yield Transcript(id="transcript")


@dataclass
class Cost:
    """What one stream cost."""

    cpu_percent: float
    lag_p95_ms: float
    lag_max_ms: float
    identical: bool


async def _probe(lags: list[float], stop: asyncio.Event) -> None:
    while not stop.is_set():
        start = time.perf_counter()
        await asyncio.sleep(0.005)
        lags.append((time.perf_counter() - start - 0.005) * 1000)


async def _write(transcript: Transcript, source: str, rate: float, seconds: float) -> str:
    """Append `source` at `rate` characters a second, 20 times a second; return what was written."""
    start = time.perf_counter()
    sent = 0
    while sent < len(source) and (passed := time.perf_counter() - start) < seconds:
        due = min(len(source), int(passed * rate) + 1)
        transcript.append_text("answer", source[sent:due])
        sent = due
        await asyncio.sleep(0.05)
    return source[:sent]


async def stream(kind: str, rate: float, seconds: float, head: float = 0.0) -> Cost:
    """Stream a document; the first `head` of it (a share) is there at the start."""
    source = DOCUMENTS[kind]()
    start_at = int(len(source) * head)
    app = TranscriptApp()
    async with app.run_test(size=(120, 40)) as pilot:
        transcript = app.query_one(Transcript)
        transcript.show([MessageView("question", "user", "Write.")])
        transcript.begin(MessageView("answer", "assistant", source[:start_at], status="streaming"))
        await pilot.pause()
        lags: list[float] = []
        stop = asyncio.Event()
        probe = asyncio.create_task(_probe(lags, stop))
        wall, cpu = time.perf_counter(), time.thread_time()
        sent = await _write(transcript, source[start_at:], rate, seconds)
        wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
        transcript.finish("answer", "complete", "done")
        await pilot.pause()
        stop.set()
        await probe
        lags.sort()
        identical = transcript.get_selection(SELECT_ALL) == (f"Write.\n\n{source[:start_at]}{sent}", "\n")
        return Cost(cpu / wall * 100, lags[int(len(lags) * 0.95)], lags[-1], identical)


async def _painted(transcript: Transcript) -> None:
    done = asyncio.Event()
    transcript.call_after_refresh(done.set)
    await done.wait()


async def opening(count: int) -> tuple[float, float, float]:
    """Return milliseconds to open `count` messages, to resize, and to show its beginning."""
    texts = [prose(2), code(40), bullets(20), table(12)]
    views = [
        MessageView(str(i), "user" if i % 2 == 0 else "assistant", texts[i // 2 % 4]) for i in range(count)
    ]
    app = TranscriptApp()
    async with app.run_test(size=(120, 40)) as pilot:
        transcript = app.query_one(Transcript)
        transcript.show([MessageView("warm", "assistant", "Some *words*.")])
        await pilot.pause()
        start = time.perf_counter()
        transcript.show(views)
        await _painted(transcript)
        opened = time.perf_counter() - start
        await pilot.pause(0.3)
        start = time.perf_counter()
        size, before = Size(90, 40), transcript.size
        app.post_message(Resize(size, size))
        while transcript.size == before:
            await asyncio.sleep(0)
        await _painted(transcript)
        resized = time.perf_counter() - start
        await pilot.pause(0.3)
        start = time.perf_counter()
        transcript.scroll_home(animate=False, immediate=True)
        await _painted(transcript)
        return opened * 1000, resized * 1000, (time.perf_counter() - start) * 1000


def main() -> int:
    """Measure everything and print it beside its bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="most seconds a stream lasts")
    parser.add_argument("--rate", type=float, default=2000.0, help="characters a second")
    parser.add_argument("--count", type=int, default=1000, help="messages to open")
    options = parser.parse_args()
    failed = False
    for kind in DOCUMENTS:
        for head in (0.0, 0.8):
            cost = asyncio.run(stream(kind, options.rate, options.seconds, head))
            bad = cost.cpu_percent > CPU_BAR or cost.lag_p95_ms > LAG_BAR_MS or not cost.identical
            failed |= bad
            print(
                f"{kind:6} from {head:.0%}: UI CPU {cost.cpu_percent:5.1f} %",
                f"lag p95 {cost.lag_p95_ms:5.1f} ms, max {cost.lag_max_ms:6.1f} ms",
                f"identical {cost.identical}{'  MISSED' if bad else ''}",
                sep="  ",
            )
    opened, resized, home = asyncio.run(opening(options.count))
    print(
        f"open {options.count} messages {opened:.0f} ms, resize {resized:.0f} ms, scroll home {home:.0f} ms"
    )
    failed |= opened > OPEN_BAR_MS or resized > RESIZE_BAR_MS
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
