"""Pictures of every screen, taken of the real app with a real model, and a recording of it in a terminal.

    python -m tests.perf.pictures --out tests/pictures [--model FILE] [--only engine]
    python -m tests.perf.recording --out tests/pictures/tabs.cast

The pictures stand in the README; what they say of speed is what this computer did meanwhile.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from textual.pilot import Pilot

from app.chat.session import ChatSession
from app.settings.file import GeneralSettings, Settings
from app.settings.paths import HOME_VARIABLE
from app.window.app import ChatApp, engine_factory
from tests.app.driving import chat, say
from tests.app.driving import ready as until_ready

QUESTIONS = (
    "Tell me a short story about a fox and a lighthouse.",
    "Give me three tips for sleeping better.",
    "Write a Python function that reverses a string.",
)
STORIES = (QUESTIONS[0], "Tell me a long story about the sea.", "Tell me a story about a brave fox.")
ENOUGH = 40
"""Tokens of an answer that are worth a picture."""
Scene = Callable[[Pilot[int]], Awaitable[None]]


async def ask(pilot: Pilot[int], text: str) -> None:
    """Send a message; return when its answer stands."""
    await until_ready(pilot, 120)
    session = chat(pilot.app).active  # type: ignore[arg-type]
    before = len(session.conversation.path())
    await say(pilot, text)
    await until(lambda: len(session.conversation.path()) == before + 2 and not session.busy)


async def until(condition: Callable[[], object], seconds: float = 240.0) -> None:
    """Wait, and not for an idle app: what streams is to be seen."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("what was to be shown never came")
        await asyncio.sleep(0.02)


async def tabs(pilot: Pilot[int]) -> None:
    """Three chats that answer at the same time beside one that has, with the panel."""
    await stream(await chats_of(pilot))


async def chats_of(pilot: Pilot[int]) -> list[ChatSession]:
    """Four chats, the first and the last with something in them; all but the first."""
    await ask(pilot, "How do I cook rice?")
    for _ in range(3):
        await pilot.press("ctrl+t")
        screen = await until_ready(pilot)
    for question in QUESTIONS[1:]:
        await ask(pilot, question)
    return screen.tabs.sessions[1:]


async def stream(sessions: list[ChatSession]) -> None:
    """Have chats answer; return in the midst of it."""
    for session, question in zip(sessions, STORIES, strict=True):
        session.send(question)
    paths = [one.conversation.path for one in sessions]
    await until(lambda: all(path() and len(path()[-1].token_ids) > ENOUGH for path in paths), 60)


async def empty(pilot: Pilot[int]) -> None:
    """An empty chat."""
    await until_ready(pilot, 120)


async def engine(pilot: Pilot[int]) -> None:
    """The engine view while tabs answer."""
    sessions = await chats_of(pilot)
    await pilot.press("alt+k")
    await stream(sessions)


async def columns(pilot: Pilot[int]) -> None:
    """Answers of one prompt side by side."""
    await until_ready(pilot, 120)
    screen = chat(pilot.app)  # type: ignore[arg-type]
    screen.composer.focus()
    screen.composer.insert("/fan 3 Write a short story about a dragon.")
    await pilot.press("enter")
    await until(lambda: len(pilot.app.screen_stack) > 1)
    await asyncio.sleep(0.6)


def after(first: Scene, *keys: str) -> Scene:
    """Another scene, and keys behind it."""

    async def scene(pilot: Pilot[int]) -> None:
        await first(pilot)
        await pilot.press(*keys)
        await asyncio.sleep(0.6)

    return scene


def opened_by(first: Scene, action: str, seconds: float = 1.0) -> Scene:
    """Another scene, and what an action has opened over it after some seconds."""

    async def scene(pilot: Pilot[int]) -> None:
        await first(pilot)
        await chat(pilot.app).run_action(action)  # type: ignore[arg-type]
        await asyncio.sleep(seconds)

    return scene


async def waiting(pilot: Pilot[int]) -> None:
    """Messages that wait behind an answer."""
    await until_ready(pilot, 120)
    session = chat(pilot.app).active  # type: ignore[arg-type]
    for text in ("Tell me a long story about the sea.", QUESTIONS[1], QUESTIONS[2]):
        session.send(text)


async def two_chats(pilot: Pilot[int]) -> None:
    """A chat and its fork, whose last answers differ."""
    await ask(pilot, STORIES[2])
    screen = chat(pilot.app)  # type: ignore[arg-type]
    fork = screen.active.conversation.fork()
    await screen.open_in_tab(fork, 1)
    await until_ready(pilot)
    await pilot.press("ctrl+r")
    await until(lambda: not screen.active.busy)


async def talked(pilot: Pilot[int]) -> None:
    """A chat with two turns and an answer that has versions."""
    await ask(pilot, QUESTIONS[1])
    await ask(pilot, QUESTIONS[2])
    await pilot.press("ctrl+r")
    session = chat(pilot.app).active  # type: ignore[arg-type]
    await until(lambda: not session.busy)


SCENES: dict[str, tuple[tuple[int, int], str, Scene]] = {
    "tabs": ((140, 38), "ink", tabs),
    "empty": ((100, 30), "ink", empty),
    "engine": ((140, 38), "ink", engine),
    "columns": ((140, 34), "ink", columns),
    "models": ((110, 32), "ink", after(empty, "ctrl+o")),
    "chats": ((110, 32), "linen", after(talked, "ctrl+l")),
    "branches": ((110, 32), "linen", after(talked, "alt+i")),
    "settings": ((110, 32), "linen", after(empty, "alt+l")),
    "chat-settings": ((100, 32), "ink", after(empty, "f8")),
    "keys": ((110, 32), "ink", after(empty, "ctrl+x")),
    "commands": ((100, 30), "ink", after(empty, "slash")),
    "find": ((100, 30), "linen", after(talked, "ctrl+f", "s", "l", "e", "e", "p", "enter")),
    "compare": ((140, 34), "ink", opened_by(two_chats, "compare")),
    "queue": ((100, 30), "linen", opened_by(waiting, "queue")),
    "room": ((110, 32), "ink", opened_by(talked, "make_room")),
    "bench": ((110, 32), "linen", opened_by(empty, "bench", 25.0)),
    "themes": ((100, 30), "frost", opened_by(empty, "choose_theme")),
    "export": ((100, 30), "moss", opened_by(talked, "export_chat")),
    "help": ((110, 40), "ink", opened_by(empty, "help")),
}


async def take(name: str, model: Path | None, out: Path) -> None:
    """Take one picture, in a home of its own."""

    size, theme, scene = SCENES[name]
    settings = Settings(general=GeneralSettings(theme=theme))
    app = ChatApp(settings, engine_factory=engine_factory(settings.engine), model=model)
    async with app.run_test(size=size) as pilot:
        await scene(pilot)
        (out / f"{name}.svg").write_text(app.export_screenshot(title="tui-chat"), encoding="utf-8")
        print(name, flush=True)


def main() -> None:
    """Take all pictures, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--only", action="append", choices=SCENES)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ.pop(HOME_VARIABLE, None)
    for name in args.only or SCENES:
        with tempfile.TemporaryDirectory() as home:
            os.environ["HOME"] = home
            asyncio.run(take(name, args.model, args.out))


if __name__ == "__main__":
    main()
