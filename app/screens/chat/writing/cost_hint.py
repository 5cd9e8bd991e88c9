"""The line below what is being written that says what it will cost, once it is long."""

import asyncio
import threading

from textual.worker import WorkType

from app.chat.message_cost import LEAST_TOKENS, TokenCounter, cost_of
from app.screens.chat.tabs import Tabs
from app.screens.context import AppContext
from app.terminal.later import later
from app.widgets.writing.composer import Composer

_PAUSE = 0.3
"""Seconds from a key to a count, in which others may follow."""


class CostHint:
    """Counts what the composer holds, on another thread and never for each key."""

    def __init__(self, composer: Composer, context: AppContext, tabs: Tabs) -> None:
        self._composer, self._context, self._tabs = composer, context, tabs
        self._waits = False
        self._counter: TokenCounter | None = None
        self._stop = threading.Event()
        self._counting = self._again = False
        self._chat = ""

    def count_soon(self) -> None:
        """Count, once this text, model or context has stood for a moment.

        What was said of another chat, or of a message that was sent, is taken away at once.
        """
        document = self._composer.document
        if self._composer.chat != self._chat or (document.line_count == 1 and not document.get_line(0)):
            self._chat = self._composer.chat
            self._say("", warns=False)
        if not self._waits:
            self._waits = True
            later(self._composer, _PAUSE, self._due)

    def close(self) -> None:
        """Count no more."""
        self._stop.set()

    def _due(self) -> None:
        self._waits = False
        # The text may have changed again while a long one is being counted.
        self._again = self._counting
        if not self._counting:
            self._counting = True
            # Not in the composer's own queue, in which keys would wait for it; a text that cannot be
            # counted must not end the app.
            count: WorkType[None] = self._count
            self._composer.run_worker(count, group="cost", exit_on_error=False)

    async def _count(self) -> None:
        try:
            await self._count_once()
        finally:
            self._counting = False
        if self._again:
            self.count_soon()

    async def _count_once(self) -> None:
        composer, chat = self._composer, self._composer.chat
        index = self._tabs.index_of(chat)
        model = self._tabs.sessions[index].model if index >= 0 else None
        draft = composer.draft
        # A token is hardly ever less than a character.
        short = len(draft.text) + sum(map(len, draft.chips.values())) < LEAST_TOKENS
        if model is None or short or model.counter is None:
            self._say("", warns=False)
            return
        if self._counter is None or self._counter.tokenizer is not model.counter:
            self._counter = TokenCounter(model.counter)
        loop = asyncio.get_running_loop()
        tokens = await loop.run_in_executor(
            self._context.services.encoders, self._counter.count, draft, self._stop
        )
        index = self._tabs.index_of(chat)
        if tokens is None or index < 0 or composer.chat != chat:
            return
        sessions = self._tabs.sessions
        cost = cost_of(tokens, sessions[index], sessions, self._context.engine.stats())
        self._say(cost.words, warns=cost.warns)

    def _say(self, words: str, *, warns: bool) -> None:
        if self._composer.border_subtitle != words:
            self._composer.border_subtitle = words
        self._composer.set_class(warns and bool(words), "-long")
