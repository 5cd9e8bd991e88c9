"""Pictures of every dialog and screen in two themes and three sizes, to be looked at by a person.

    python -m tests.perf.dialogs --out DIR [--only context] [--theme chalk] [--size 60x15]

Nothing is compared: what is ugly, cut off or confusing is for the eye. The engine is scripted, so it takes
a second or two for each.
"""

import argparse
import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from textual.pilot import Pilot
from textual.screen import Screen

from app.models.listed.listing import ModelFile
from app.screens.chat.screen import ChatScreen
from app.screens.dialogs.confirm import ConfirmScreen
from app.screens.dialogs.models.load_plan import LoadPlanScreen
from app.screens.dialogs.tags import TagsScreen
from app.settings.file import GeneralSettings, Settings
from app.settings.paths import HOME_VARIABLE, locations
from app.window.app import ChatApp
from engine import LoadPlan, PlannedRelease, Release
from tests.app.driving import ready, say, wait_until
from tests.support.fakes import FakeEngine, FakeGeneration

THEMES = ("ember", "chalk")
SIZES = ((60, 15), (80, 24), (120, 40))
MODELS = [
    ModelFile(Path("/m/small-q4.gguf"), "small-q4", 400_000_000, "Q4_K_M", 8192),
    ModelFile(Path("/m/large-q8.gguf"), "large-q8", 9_000_000_000, "Q8_0", 32768, caution="needs 70 GB"),
    ModelFile(Path("/m/odd.gguf"), "odd", 1, "F16", 1, problem="architecture odd is not supported"),
]
ANSWER = """Terns fly from pole to pole, see [their map](https://example.org/terns).

| bird | kilometres |
|---|---|
| tern | 70,000 |

```python
print("tern")
```
"""
PLAN = LoadPlan(
    "Large",
    9_000_000_000,
    1_000_000_000,
    (PlannedRelease(1, "small", "/m/small-q4.gguf", 400_000_000, Release.PAUSE, 0.5),),
    4.0,
    None,
)
Scene = Callable[[Pilot[int], ChatScreen, FakeEngine], Awaitable[None]]


def by_action(name: str) -> Scene:
    """What an action opens."""

    async def scene(pilot: Pilot[int], screen: ChatScreen, engine: FakeEngine) -> None:
        await screen.run_action(name)

    return scene


def pushed(make: Callable[[], Screen]) -> Scene:
    """A dialog that takes more than a key to come."""

    async def scene(pilot: Pilot[int], screen: ChatScreen, engine: FakeEngine) -> None:
        pilot.app.push_screen(make())

    return scene


async def waiting(pilot: Pilot[int], screen: ChatScreen, engine: FakeEngine) -> None:
    """The queue behind an answer that is being written."""
    screen.active.send("How far do they fly in a year?")
    await wait_until(pilot, lambda: screen.active.running)
    engine.generations[-1].feed("About ")
    for text in ("And how do they sleep?", "Which birds fly as far? " * 6):
        screen.active.send(text)
    await screen.run_action("queue")


async def measured(pilot: Pilot[int], screen: ChatScreen, engine: FakeEngine) -> None:
    """The figures of a model."""

    def compute(generation: FakeGeneration) -> None:
        generation.read(10)

    engine.on_submit = compute
    await screen.run_action("bench")


async def two_chats(pilot: Pilot[int], screen: ChatScreen, engine: FakeEngine) -> None:
    """Two tabs beside each other."""
    fork = screen.active.conversation.fork()
    await screen.open_in_tab(fork, 1)
    await ready(pilot)
    await screen.run_action("compare")


async def columns(pilot: Pilot[int], screen: ChatScreen, engine: FakeEngine) -> None:
    """Three answers to one message."""
    before = len(engine.generations)
    await screen.action_fan("3")
    await wait_until(pilot, lambda: len(engine.generations) == before + 1)
    # The others wait until the prompt has been read.
    engine.generations[before].feed("Terns ")
    await wait_until(pilot, lambda: len(engine.generations) == before + 3)
    for generation in engine.generations[before:]:
        generation.feed("Terns fly far, and so do others. ")


async def commands(pilot: Pilot[int], screen: ChatScreen, engine: FakeEngine) -> None:
    """Slash commands."""
    screen.composer.focus()
    await pilot.press("/", "c")


SCENES: dict[str, Scene] = {
    **{
        name: by_action(name)
        for name in (
            *(
                "help",
                "leader",
                "palette",
                "chats",
                "rename_tab",
                "export_chat",
                "tab_settings",
                "choose_model",
            ),
            *(
                "context",
                "make_room",
                "fork",
                "edit_message",
                "branches",
                "settings",
                "choose_theme",
                "links",
            ),
            *("find", "engine_view", "tools"),
        )
    },
    "bench": measured,
    "commands": commands,
    "queue": waiting,
    "compare": two_chats,
    "columns": columns,
    "tags": pushed(lambda: TagsScreen(("work", "birds"))),
    "confirm": pushed(
        lambda: ConfirmScreen("“Terns” is still answering. Stop it and close the tab?", "Stop", "Keep")
    ),
    "load_plan": pushed(lambda: LoadPlanScreen("Large", PLAN)),
}


async def picture(name: str, theme: str, size: tuple[int, int], out: Path) -> None:
    """Take one, of a chat with two turns that has its own home."""
    engine = FakeEngine()
    settings = Settings(general=GeneralSettings(theme=theme))
    app = ChatApp(
        settings, engine_factory=lambda: engine, places=locations(), find_models=lambda _search: MODELS
    )
    app.animation_level = "none"
    async with app.run_test(size=size) as pilot:
        screen = await ready(pilot)
        for number, text in enumerate(("How far do terns fly?", "Show it as a table.")):
            await say(pilot, text)
            await wait_until(pilot, lambda number=number: len(engine.generations) == number + 1)
            engine.generations[-1].feed(ANSWER)
            engine.generations[-1].finish()
            await wait_until(pilot, lambda: not screen.active.busy)
        await SCENES[name](pilot, screen, engine)
        await asyncio.sleep(0.5)
        await pilot.pause()
        file = out / f"{name}-{theme}-{size[0]}x{size[1]}.svg"
        file.write_text(app.export_screenshot(title=file.stem), encoding="utf-8")
        print(file, flush=True)


def chosen(args: argparse.Namespace) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """What is asked for, all of it where nothing is named."""
    for name in [args.only] if args.only else SCENES:
        for theme in [args.theme] if args.theme else THEMES:
            for size in SIZES:
                if args.size in ("", f"{size[0]}x{size[1]}"):
                    yield name, theme, size


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=SCENES)
    parser.add_argument("--theme", default="")
    parser.add_argument("--size", default="", help="such as 80x24")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name, theme, size in chosen(args):
        with tempfile.TemporaryDirectory() as home:
            os.environ[HOME_VARIABLE] = home
            asyncio.run(picture(name, theme, size, args.out))


if __name__ == "__main__":
    main()
