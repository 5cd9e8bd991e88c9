"""What the model picker does with the models that are there: mark, sort, delete, show in their folder."""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from textual.screen import Screen

from app.models.fit.device import memory_of
from app.models.fit.speeds import SpeedStore
from app.models.found import ModelSearch
from app.models.listed.listing import ModelFile
from app.models.listed.notes import ModelNotes
from app.models.listed.order import Known, Order
from app.models.listed.removal import Removal, RemovalRefused, plan_removal, remove
from app.screens.dialogs.confirm import ConfirmScreen
from app.screens.dialogs.models.context_length import ContextFacts, ContextLength
from app.screens.dialogs.models.model_rows import title_of
from app.settings.paths import Locations
from app.settings.words import size_text
from app.terminal.clipboard import CopyResult
from app.terminal.driver import write_terminal
from app.terminal.reveal import reveal

if TYPE_CHECKING:
    from engine import EngineStats

Copy = Callable[[str, Callable[[str], None]], CopyResult]


class ModelKeeper:
    """in_use: by file the title of a chat that has a model open; stats: of the engine, if it has started."""

    def __init__(
        self,
        places: Locations,
        copy: Copy,
        in_use: Callable[[], Mapping[Path, str]],
        stats: "Callable[[], EngineStats | None]",
    ) -> None:
        self._notes = ModelNotes(places.notes_file)
        self._speeds = SpeedStore(places.speeds_file)
        self._copy = copy
        self._in_use = in_use
        self._stats = stats

    def known(self) -> Known:
        """Read what is known of models besides their files; call it off the UI."""
        stats = self._stats()
        models = stats.models if stats is not None else ()
        by_torch = {Path(model.path): model.by_torch for model in models if model.by_torch}
        devices = {Path(model.path): model.device for model in models if model.device}
        return Known(self._notes.read(), self._speeds.all(), by_torch, devices)

    async def toggle_favourite(self, screen: Screen, model: ModelFile) -> Known:
        """Mark a model, or no more; return what is known then."""
        return await self._write(screen, partial(self._notes.toggle_favourite, model.path))

    async def sort_by(self, screen: Screen, order: Order) -> Known:
        """Sort otherwise, and remember that; return what is known then."""
        known = await self._write(screen, partial(self._notes.keep_order, str(order)))
        return replace(known, notes=replace(known.notes, order=str(order)))

    async def show_folder(self, screen: Screen, model: ModelFile) -> None:
        """Show the file in its folder, or copy its path where there is no desktop; say which."""
        if await asyncio.to_thread(reveal, model.path, os.environ):
            screen.notify(f"The folder of {title_of(model)} is open in the file manager.")
            return
        path = str(model.path)
        copied = await asyncio.to_thread(self._copy, path, partial(write_terminal, screen.app))
        said = f"There is no desktop here to show {path}; its path is copied instead. {copied.message}"
        if not copied.ok:
            said = f"There is no desktop here to show {path}. {copied.message}"
        screen.notify(said, severity="information" if copied.ok else "warning")

    async def choose_context(self, screen: Screen, model: ModelFile, search: ModelSearch) -> Known:
        """Ask how long chats with a model may become, before it is loaded; return what is known then."""
        title, known = title_of(model), await asyncio.to_thread(self.known)
        if model.path in self._in_use():
            screen.notify(f"{title} is open in a chat: /context chooses there.")
            return known
        chosen = known.notes.contexts.get(model.path)
        facts = await asyncio.to_thread(facts_before_load, model, title, search, chosen)
        if facts is None:
            screen.notify(f"How much memory {title} would have for chats is not known.", severity="warning")
            return known
        tokens = await screen.app.push_screen_wait(ContextLength(facts))
        if tokens is None:
            return known
        kept = None if tokens == facts.longest else tokens
        return await self._write(screen, partial(self._notes.keep_context, model.path, kept))

    async def delete(self, screen: Screen, model: ModelFile, search: ModelSearch) -> bool:
        """Ask, and delete a model's files; tell whether that was done. Says why where it cannot be."""
        try:
            removal = await asyncio.to_thread(plan_removal, model, search, self._in_use())
        except (RemovalRefused, OSError) as error:
            screen.notify(f"{title_of(model)} is not deleted. {error}", severity="warning", timeout=10)
            return False
        question = ConfirmScreen(_question(model, removal), "Delete", "Keep")
        if not await screen.app.push_screen_wait(question):
            return False
        try:
            await asyncio.to_thread(remove, removal)
        except OSError as error:
            screen.notify(f"{error.filename}: {error.strerror}", severity="error", timeout=10)
        else:
            screen.notify(f"{title_of(model)} is deleted.")
        return True

    async def _write(self, screen: Screen, change: Callable[[], object]) -> Known:
        try:
            await asyncio.to_thread(change)
        except OSError as error:
            screen.notify(f"This is not remembered: {error.strerror}", severity="warning")
        return await asyncio.to_thread(self.known)


def facts_before_load(
    model: ModelFile, title: str, search: ModelSearch, chosen: int | None
) -> ContextFacts | None:
    """What chats would take of the memory that is free beside the weights; None where nobody says what is.

    Asks the device: call off the UI.
    """
    memory, summary = memory_of(search), model.summary
    if memory is None or summary is None or summary.footprint is None:
        return None
    footprint, room = summary.footprint, memory.fit_of(summary.footprint)
    if room.free_bytes is None:
        return None
    longest = footprint.context_length

    def cost(tokens: int) -> int:
        return memory.fit_of(footprint, context=tokens).chat_bytes if tokens else 0

    return ContextFacts(title, min(chosen or longest, longest), longest, room.kv_room, cost)


def _question(model: ModelFile, removal: Removal) -> str:
    where = removal.paths[0].parent
    count = len(removal.paths)
    if removal.links:
        return f"Delete {title_of(model)} from {where}? It is a link: the file that it leads to stays."
    files = "its file" if count == 1 else f"its {count} files"
    return f"Delete {title_of(model)}? {size_text(removal.size)}, {files} in {where}, are gone for good then."
