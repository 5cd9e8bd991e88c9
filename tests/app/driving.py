"""How UI tests wait and look: by conditions, never by time."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from textual.pilot import Pilot

from app.chat.session import ChatSession
from app.screens.chat.screen import ChatScreen
from app.screens.chat.views import message_view
from app.transcript.view import Transcript
from app.widgets.lines import LineWidget
from app.widgets.tab_bar import TabBar
from app.window.app import ChatApp

IDLE_STEP_S = 0.004


async def wait_for_idle(min_sleep: float = 0.0, max_sleep: float = 1.0) -> None:
    """Return when the app has handled what was sent to it: Textual's own wait in shorter steps.

    Textual sleeps in steps of 20 ms until one of them used little CPU. Here the event loop must besides
    have nothing left to call, so a step of 4 ms tells as much, also where the machine is busy.
    """
    loop: Any = asyncio.get_running_loop()
    start = time.monotonic()
    while True:
        used = time.process_time()
        await asyncio.sleep(IDLE_STEP_S)
        used, waited = time.process_time() - used, time.monotonic() - start
        if waited >= max_sleep or (waited > min_sleep and used < IDLE_STEP_S / 10 and not loop._ready):
            return


async def wait_until(pilot: Pilot, condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Return once `condition()` is true and every screen has its widgets; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        await pilot.pause()
        if condition() and all(screen.is_mounted for screen in pilot.app.screen_stack):
            return
        assert time.monotonic() < deadline, f"never came true: {condition}"
        await asyncio.sleep(0.005)


def chat(app: ChatApp) -> ChatScreen:
    screen = app.chat_screen
    assert screen is not None
    return screen


def plain(widget: LineWidget) -> str:
    """What a widget of rows shows, without styles."""
    return "\n".join("".join(text for text, _ in row) for row in widget._rows)


def bar_text(app: ChatApp) -> str:
    return plain(chat(app).query_one(TabBar))


def shown_answer(transcript: Transcript) -> str:
    """The source text of the last answer in a transcript."""
    return next((item.text for item in reversed(transcript._column.items) if item.role == "assistant"), "")


def footer_of(session: ChatSession, node_id: str) -> str:
    return message_view(session, session.conversation.nodes[node_id]).footer


async def ready(pilot: Pilot, seconds: float = 30.0) -> ChatScreen:
    """Wait until every tab's model is there."""
    app = pilot.app
    assert isinstance(app, ChatApp)
    await wait_until(pilot, lambda: app.chat_screen is not None and app.chat_screen.tabs.sessions)
    screen = chat(app)
    await wait_until(pilot, lambda: all(s.model is not None for s in screen.tabs.sessions), seconds)
    return screen


async def say_to_a_slow_template(pilot: Pilot) -> threading.Event:
    """Send a message whose prompt is encoded only when the event is set."""
    screen = chat(pilot.app)  # type: ignore[arg-type]
    model: Any = screen.active.model.local  # type: ignore[union-attr]
    gate = model.template.gate = threading.Event()
    await say(pilot, "slow one")
    await wait_until(pilot, lambda: screen.active.busy)
    return gate


async def say(pilot: Pilot, text: str) -> None:
    """Write a message and send it."""
    screen = chat(pilot.app)  # type: ignore[arg-type]
    screen.composer.focus()
    screen.composer.insert(text)
    await pilot.press("enter")
