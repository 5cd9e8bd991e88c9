"""Plain mode from its first line to its last: lines in, text out, everything saved at the end."""

import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TextIO

from app.models.endpoint_keys import absolute
from app.models.make import make_engine, switch_often
from app.models.port import EngineFactory, EnginePort
from app.plain.commands import Commands
from app.plain.talk import Talk
from app.plain.windows import Windows
from app.screens.wiring import Asked, Ears, end_services, wire
from app.settings.file import EngineSettings, Settings
from app.settings.paths import Locations, locations
from app.terminal.log_file import logging_to
from app.writing.commands import ACTION_NAMES, as_message, called, named
from app.writing.commands import Command as Kept
from app.writing.prompts import read_prompts

_GOES_ON = "\\"
_YOU, _MORE = "You: ", "... "


def run_plain(
    settings: Settings,
    model: str | Path | None = None,
    folders: Sequence[str | Path] = (),
    warnings: Sequence[str] = (),
    chat: str | None = None,
) -> int:
    """Run plain mode on stdin and stdout until the reader leaves; return the exit code."""
    places = locations()
    asked = Asked(
        absolute(model) if model else None,
        [Path(folder).expanduser().absolute() for folder in folders],
        chat,
        warnings,
    )
    with logging_to(places.log_file):
        plain = Plain(settings, places, _factory(settings.engine), asked)
        return asyncio.run(plain.run())


def _factory(settings: EngineSettings) -> EngineFactory:
    def make() -> EnginePort:
        switch_often()
        return make_engine(settings, keep_kv=True)

    return make


class Plain:
    """Reads lines and carries them out, one after the other."""

    def __init__(
        self,
        settings: Settings,
        places: Locations,
        factory: EngineFactory,
        asked: Asked,
        lines: TextIO = sys.stdin,
        out: TextIO = sys.stdout,
    ) -> None:
        """lines, out: what is read and written, line by line."""
        self._settings, self._places, self._factory, self._asked = settings, places, factory, asked
        self._lines, self._out = lines, out
        self._typed: asyncio.Queue[str | None] = asyncio.Queue()
        """Lines that were read; None behind the last."""
        self._by_hand = lines.isatty()
        self._problems: set[str] = set()
        self._code = 0
        self._watching: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Talk until the reader leaves; return the exit code."""
        loop = asyncio.get_running_loop()
        ears = Ears(self._warn, self._warn, lambda: None, lambda _: None, lambda *_: None)
        context = wire(loop, self._settings, self._places, self._factory, ears, self._asked)
        self.talk = Talk(context, self._out)
        self._commands = Commands(self.talk, partial(self._typed.put_nowait, None))
        self._watch_signals(loop)
        context.engine.start()
        code = 0
        try:
            await self._restore()
            threading.Thread(target=self._read, args=(loop,), name="lines", daemon=True).start()
            code = await self._converse()
        finally:
            saved = await self._end()
        if not saved:
            print(f"tui-chat: {self._places.history_file}: not everything could be saved", file=sys.stderr)
        return code if saved else 1

    async def _restore(self) -> None:
        """Open the chats of the last time, or an empty one."""
        context, tabs = self.talk.context, self.talk.tabs
        conversations, active = await asyncio.to_thread(context.restored)
        ids = [conversation.id for conversation in conversations]
        elsewhere = await asyncio.to_thread(context.history.written_elsewhere, ids)
        for conversation in conversations or [context.new_conversation()]:
            tabs.add(conversation, read_only=conversation.id in elsewhere)
        for warning in context.warnings:
            self._warn(warning)
        self.talk.say("tui-chat, line by line. /help lists the commands, /quit leaves.")
        for session in tabs.sessions:
            if not session.read_only:
                tabs.open_model(session)
        self.talk.go(min(active, len(tabs.sessions) - 1))
        self._watching = asyncio.create_task(Windows(self.talk).watch())

    async def _converse(self) -> int:
        begun: list[str] = []
        while True:
            if not self._by_hand:
                await self._until(lambda: not self.talk.busy)
            self.talk.wait_for_line(_MORE if begun else _YOU)
            line = await self._typed.get()
            if line is None:
                self.talk.line_came("")
                break
            self.talk.line_came(None if self._by_hand else line)
            if line.endswith(_GOES_ON):
                begun.append(line.removesuffix(_GOES_ON))
                continue
            text, begun = "\n".join([*begun, line]), []
            await self._take(text)
        if not self._by_hand:
            await self._until(lambda: not self.talk.any_busy)
        return self._code

    async def _take(self, text: str) -> None:
        call = called(text)
        if call is not None and not await self._commands.run(*call) and not await self._send_kept(*call):
            self.talk.say(f"There is no command /{call[0]}; /help lists them. To send this, write // first.")
        if call is None and text.strip():
            self.talk.send(as_message(text))

    async def _send_kept(self, name: str, rest: str) -> bool:
        """Send a prompt of the reader's, with what stands behind its name; tell whether there is one."""
        prompts, problems = await asyncio.to_thread(
            read_prompts, self.talk.context.locations.prompts, ACTION_NAMES
        )
        for problem in set(problems) - self._problems:
            self._warn(problem)
        self._problems |= set(problems)
        kept = named(name, [Kept(prompt.name, "", prompt.help, prompt) for prompt in prompts])
        if kept is not None and kept.prompt is not None:
            self.talk.send(kept.prompt.filled("", rest))
        return kept is not None

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.talk.changed.clear()
            if not condition():
                await self.talk.changed.wait()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read lines on a thread of its own: a line may take for ever."""
        with contextlib.suppress(RuntimeError, ValueError):
            for line in self._lines:
                loop.call_soon_threadsafe(self._typed.put_nowait, line.rstrip("\r\n"))
            loop.call_soon_threadsafe(self._typed.put_nowait, None)

    def _watch_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        loop.add_signal_handler(signal.SIGINT, self._on_interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_interrupt(self) -> None:
        """Ctrl+C stops the answer; where there is none, it leaves."""
        if not self.talk.active.stop():
            self._on_signal(signal.SIGINT)

    def _on_signal(self, number: int) -> None:
        self._code = 128 + number
        self._by_hand = True
        self._typed.put_nowait(None)
        self.talk.changed.set()

    def _warn(self, message: str) -> None:
        self.talk.say(f"Warning: {message}")

    async def _end(self) -> bool:
        """Save everything and end what stands behind."""
        context = self.talk.context
        if self._watching is not None:
            self._watching.cancel()
        context.services.pump.close()
        context.fetching.leave()
        for session in self.talk.tabs.sessions:
            session.shut_down()
        context.services.encoders.shutdown(wait=False, cancel_futures=True)
        return await asyncio.to_thread(end_services, context)
