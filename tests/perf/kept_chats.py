"""How long lists, searches and long chats take with many chats kept.

    python -m tests.perf.kept_chats [--chats 10000] [--messages 20]

Prints the median and the slowest of some runs, and the median of the processor's time, which a busy computer
does not stretch as much: the list and searches of the history, and a chat of 1,000 messages from the key that
opens it to the first frame that shows it, in an app without a terminal.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

from app.chat.conversation import AnswerStats, Conversation
from app.history.store import HistoryStore

_RUNS = 7
_LONG = 1000
_QUERIES = (
    ("a common word", "river"),
    ("a beginning", "mou"),
    ("one letter", "s"),
    ("two words", "river stone"),
    ("a rare word", "zyzzyva"),
    ("a word's inside", "zzyv"),
    ("nothing", "qqqqxx"),
    ("a tag", "#work"),
    ("a word in a tag", "#work river"),
    ("a letter in a tag", "#work s"),
)


def fill(history: HistoryStore, chats: int, messages: int) -> str:
    """Keep chats of words that are as frequent as in a language; return the id of a long one."""
    draw = random.Random(5)
    rare = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(4, 11))) for _ in range(30_000)]
    words = ["river", "stone", "mountain", "sea", "bird", *rare]
    weights = list(accumulate(1 / (rank + 8) for rank in range(len(words))))

    def text(count: int) -> str:
        return " ".join(draw.choices(words, cum_weights=weights, k=count))

    for number in range(chats + 1):
        chat = Conversation(title=text(5), model_path="/models/one.gguf")
        for turn in range(messages // 2 if number < chats else _LONG // 2):
            chat.add_user(text(20) + (" zyzzyva" if number == chats // 2 and not turn else ""))
            node = chat.begin_answer("/models/one.gguf")
            chat.append(node.id, text(60), [draw.randrange(50_000) for _ in range(90)])
            chat.finish(node.id, stats=AnswerStats(90, 40.0, 100.0, 50, 400, 90.0))
        chat.updated -= draw.randrange(10**7) if number < chats else 10**8
        history.save(chat)
        if number % 200 == 0:
            history.flush()
    return chat.id


def timed(what: str, work: Callable[[], object]) -> None:
    """Print how long a question takes."""
    taken = []
    for _ in range(_RUNS):
        begin = Now()
        work()
        taken.append(begin.since())
    told(what, taken)


class Now:
    """A moment, by the clock and by the processor."""

    def __init__(self) -> None:
        self._clock, self._processor = time.perf_counter(), time.process_time()

    def since(self) -> tuple[float, float]:
        """Milliseconds since then, by both."""
        return (time.perf_counter() - self._clock) * 1000, (time.process_time() - self._processor) * 1000


def told(what: str, taken: list[tuple[float, float]]) -> None:
    """Print some runs in a line."""
    clock, processor = (list(times) for times in zip(*taken, strict=True))
    print(
        f"{what:<34} {statistics.median(clock):8.1f} ms   slowest {max(clock):8.1f} ms   "
        f"processor {statistics.median(processor):8.1f} ms",
        flush=True,
    )


async def open_long(history: HistoryStore, chat_id: str, home: Path) -> None:
    """Print how long a long chat takes from the choice to the frame that shows its end."""
    from app.settings.file import Settings
    from app.settings.paths import locations
    from app.window.app import ChatApp
    from tests.support.fakes import FakeEngine

    app = ChatApp(Settings(), engine_factory=FakeEngine, places=locations(), history=history)
    async with app.run_test(size=(120, 40)) as pilot:
        while app.chat_screen is None or not app.chat_screen.tabs.sessions:
            await pilot.pause()
        screen = app.chat_screen
        await pilot.pause(3)
        taken = []
        for _ in range(_RUNS):
            painted = asyncio.Event()
            begin = Now()
            await screen._load_kept(chat_id)
            while screen.deck.transcript is None or screen.active.conversation.id != chat_id:
                await asyncio.sleep(0)
            screen.deck.transcript.call_after_refresh(painted.set)
            await painted.wait()
            taken.append(begin.since())
            await screen.close(screen.active)
            await pilot.pause()
        told("a chat of 1,000 messages, first", taken[:1])
        told("again", taken[1:])


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chats", type=int, default=10_000)
    parser.add_argument("--messages", type=int, default=20)
    parser.add_argument("--home", type=Path, help="keep the history here and use it again")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        measure(args, args.home or Path(scratch))


def measure(args: argparse.Namespace, home: Path) -> None:
    """Fill the history if there is none, and print what each thing takes."""
    import os

    from app.chat.marks import Marks
    from app.settings.paths import HOME_VARIABLE, locations

    os.environ[HOME_VARIABLE] = str(home)
    path = locations().history_file
    fresh = not path.exists()
    history = HistoryStore(path)
    if fresh:
        begin = time.perf_counter()
        fill(history, args.chats, args.messages)
        for chat in history.recent(args.chats)[::10]:
            history.mark(chat.id, Marks(tags=("work",)))
        history.close()
        print(f"filled in {time.perf_counter() - begin:.0f} s", flush=True)
        history = HistoryStore(path)
    timed("list of the newest 200", lambda: history.recent(200))
    for what, query in _QUERIES:
        timed(
            f"search: {what} ({len(history.search(query, 200))})",
            lambda query=query: history.search(query, 200),
        )
    long = max(history.search("#all", 10**6), key=lambda chat: chat.messages)
    timed("a chat of 1,000 messages, read", lambda: history.load(long.id))
    asyncio.run(open_long(history, long.id, home))
    history.close()


if __name__ == "__main__":
    main()
