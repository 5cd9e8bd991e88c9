"""What the screens look like; after an intended change run it once with `--snapshot-update`."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.fetch import catalogue
from app.fetch.fetch import State
from app.models.listed.listing import ModelFile
from app.settings.file import GeneralSettings, Settings
from app.transcript.view import Transcript
from app.transfer.plan import Licence, Plan, RemoteFile
from app.widgets.sparkline import SpeedHistory
from engine import Priority, SequenceState
from tests.app.driving import chat, plain, ready, say, shown_answer, wait_until
from tests.app.screens.dialogs.test_chats import listed, search, talk
from tests.app.screens.dialogs.test_fetching import ENTRIES, HandFetch
from tests.app.screens.dialogs.test_model_card import TERN

MODELS = [
    ModelFile(Path("/m/pocket-46m-q5_k_s.gguf"), "pocket-46m-q5_k_s", 32_000_000, "Q5_K_M", 2048),
    ModelFile(Path("/m/Qwen3-0.6B-Q4_K_M.gguf"), "Qwen3-0.6B-Q4_K_M", 484_000_000, "Q4_K_M", 40960),
    ModelFile(Path("/m/large.gguf"), "Llama-70B", 42_000_000_000, "Q4_K_M", 131072, caution="needs 140 GB"),
    ModelFile(Path("/m/odd.gguf"), "gemma-3-4b", 2_500_000_000, "Q4_0", 131072, problem="not supported"),
]
ANSWER = """Paris is the **capital** of France.

- on the Seine
- two million people

```python
print('Paris')
```
"""


def coloured(transcript: Transcript) -> bool:
    """Whether code has its colours: they come in slices after the first paint."""
    return transcript._polishing is None and not any(item.unpolished for item in transcript._column.items)


async def draw_last(pilot, screen):
    """Stop the beat and draw tabs, status and panel from one state: else the panel lags some beats."""
    screen.beat.stop()
    screen.beat._beats = 0
    screen.beat.draw()
    await pilot.pause()


def two_chats(engine):
    async def run(pilot):
        screen = await ready(pilot)
        screen.composer.cursor_blink = False
        await say(pilot, "What is the capital of France?")
        await wait_until(pilot, lambda: len(engine.generations) == 1)
        await wait_until(pilot, lambda: screen.active.sequence_id == 1)
        engine.generations[0].feed(ANSWER)
        engine.generations[0].finish()
        await wait_until(pilot, lambda: not screen.active.busy)
        await pilot.press("ctrl+t")
        await ready(pilot)
        await say(pilot, "A long report to be read first")
        await wait_until(pilot, lambda: len(engine.generations) == 2)
        await wait_until(pilot, lambda: screen.active.sequence_id == 2)
        engine.generations[1].read(4)
        await pilot.press("alt+1")
        await wait_until(pilot, lambda: "◔" in plain(screen.query_one("#tabs")))
        await wait_until(pilot, lambda: all(coloured(view) for view in screen.query(Transcript)))
        await draw_last(pilot, screen)

    return run


TITLES = ("Foxes", "A long report", "Rain in March", "Terns and gulls")


def controlled(engine):
    """One tab writes with high priority, one is paused, one waits for memory, one for its turn."""

    async def run(pilot):
        screen = await ready(pilot)
        screen.composer.cursor_blink = False
        engine.base = replace(engine.base, kv_bytes_host=120_000_000, tick_limit_ms=24.0)
        for number, title in enumerate(TITLES):
            if number:
                await pilot.press("ctrl+t")
                await ready(pilot)
            await say(pilot, f"Tell me about: {title}")
            await wait_until(pilot, lambda number=number: screen.active.sequence_id == number + 1)
            screen.active.rename(title)
        writing, paused, evicted, _ = engine.generations
        writing.feed(ANSWER)
        paused.feed("It begins ")
        evicted.feed("In March ")
        screen.tabs.sessions[0].set_priority(Priority.HIGH)
        writing.more = {"drafted": 412, "accepted": 321}
        evicted.state = SequenceState.PAUSED
        evicted.more = {"blocks_own": 0, "blocks_host": 96, "note": "paused: the context memory is full"}
        engine.generations[3].more = {"queue_position": 2, "wait_s": 4.2}
        await pilot.press("alt+2", "f5")
        await wait_until(
            pilot, lambda: all(s.conversation.last_answer().text for s in screen.tabs.sessions[:3])
        )
        await wait_until(pilot, lambda: shown_answer(screen.deck.transcript))
        await wait_until(pilot, lambda: all(coloured(view) for view in screen.query(Transcript)))
        speeds = screen.beat._speeds[screen.tabs.sessions[0].conversation.id] = SpeedHistory(float("inf"))
        speeds.values.extend((12.0, 18.0, 27.0, 24.0, 29.0))
        speeds.add(30.0, 0.0)
        await draw_last(pilot, screen)

    return run


@pytest.mark.parametrize("theme", ["ink", "linen"])
@pytest.mark.parametrize("size", [(140, 40), (80, 24)])
def test_controlled_chats(snap_compare, make_app, engine, theme, size):
    app = make_app(Settings(general=GeneralSettings(theme=theme)))
    assert snap_compare(app, run_before=controlled(engine), terminal_size=size)


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
def test_fork(snap_compare, make_app, engine, size):
    app = make_app()

    async def run(pilot):
        await two_chats(engine)(pilot)
        await pilot.press("f9")
        await wait_until(pilot, lambda: app.screen is not chat(app))
        await wait_until(pilot, lambda: app.screen.query_one("#messages").highlighted == 1)
        await pilot.pause()

    assert snap_compare(app, run_before=run, terminal_size=size)


@pytest.mark.parametrize("theme", ["ink", "linen"])
@pytest.mark.parametrize("size", [(140, 40), (80, 24)])
def test_main_screen(snap_compare, make_app, engine, theme, size):
    app = make_app(Settings(general=GeneralSettings(theme=theme)))
    assert snap_compare(app, run_before=two_chats(engine), terminal_size=size)


def test_model_card(snap_compare, make_app):
    """In a small terminal the card stands in the list's place."""
    app = make_app(find_models=lambda folders: [TERN])

    async def run(pilot):
        screen = await ready(pilot)
        app.context.locations = replace(app.context.locations, models=Path("/models"))
        await screen.show_active()
        await pilot.press("ctrl+o")
        await wait_until(pilot, lambda: app.screen is not screen)
        await wait_until(pilot, lambda: app.screen.query_one("#models").option_count == 1)
        await pilot.press("tab")
        await wait_until(pilot, lambda: "Ctrl+↓" in str(app.screen.query_one("#foot").content))
        app.screen.query_one("Input").cursor_blink = False
        await pilot.pause()

    assert snap_compare(app, run_before=run, terminal_size=(60, 15))


def test_model_picker(snap_compare, make_app, monkeypatch, home):
    (home / "state").mkdir()
    (home / "state" / "models-offered").touch()
    app = make_app(find_models=lambda folders: MODELS)
    monkeypatch.setattr(catalogue, "read_catalogue", lambda own=None: (ENTRIES, []))

    async def run(pilot):
        await ready(pilot)
        app.context.locations = replace(app.context.locations, models=Path("/models"))
        plan = Plan("small-one", "Small One", "Acme", Licence(), (RemoteFile("", "x.gguf", 10**8),))
        fetch = app.context.fetching.jobs["small-one"] = HandFetch(plan, Path("/models"))
        fetch.become(State.RUNNING, 42_000_000, speed=2e6, seconds_left=29.0)
        chat(app).beat.draw()
        await pilot.press("ctrl+o")
        await wait_until(pilot, lambda: app.screen is not chat(app))
        await wait_until(pilot, lambda: app.screen.query_one("#models").option_count == 8)
        await pilot.press("down", "down", "down", "down")
        await wait_until(pilot, lambda: "p pauses" in str(app.screen.query_one("#foot").content))
        await wait_until(pilot, lambda: "Small One" in str(app.screen.query_one("#card").content))
        app.screen.query_one("Input").cursor_blink = False
        await pilot.pause()

    assert snap_compare(app, run_before=run, terminal_size=(120, 30))


@pytest.mark.parametrize(("theme", "size"), [("ink", (80, 24)), ("linen", (120, 30))])
def test_chats(snap_compare, make_app, engine, theme, size):
    app = make_app(Settings(general=GeneralSettings(theme=theme)))

    async def run(pilot):
        chats = await ready(pilot)
        chats.composer.cursor_blink = False
        app.context.locations = replace(app.context.locations, models=Path("/models"))
        await chats.show_active()
        birds = talk("Terns", "Where?", "From pole to pole the arctic tern flies.", age=300)
        foxes = talk("Arctic foxes, and why they are white in winter", "Why?", "Snow.", age=9e6)
        birds.model_path = foxes.model_path = "/m/Qwen3-0.6B-Q4_K_M.gguf"
        for conversation in (birds, foxes):
            app.context.history.save(conversation)
        screen = await listed(pilot)
        await search(pilot, "arctic")
        screen.query_one("Input").cursor_blink = False
        await pilot.pause()

    assert snap_compare(app, run_before=run, terminal_size=size)


@pytest.mark.parametrize("key", ["f1", "f8"])
def test_dialogs(snap_compare, make_app, key):
    app = make_app()

    async def run(pilot):
        screen = await ready(pilot)
        screen.composer.cursor_blink = False
        app.context.locations = replace(app.context.locations, models=Path("/models"))
        await screen.show_active()
        await pilot.press(key)
        await wait_until(pilot, lambda: app.screen is not screen and app.screen.focused is not None)
        # Some of what a dialog says is looked up beside it.
        await wait_until(pilot, lambda: all(one.is_finished for one in app.workers if one.node is app.screen))
        for field in app.screen.query("Input, TextArea"):
            field.cursor_blink = False
        await pilot.pause()

    assert snap_compare(app, run_before=run, terminal_size=(120, 40))
