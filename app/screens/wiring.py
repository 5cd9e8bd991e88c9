"""The services behind the screens, made and ended; plain mode has the same. Knows no widget."""

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.chat.measured import Measured
from app.chat.pump import Pump
from app.chat.shared import Services
from app.endpoints.service import Endpoints
from app.history.store import HistoryStore
from app.models.listed.notes import ModelNotes
from app.models.loader import EngineService
from app.models.port import EngineFactory
from app.screens.context import AppContext
from app.screens.fetching import Fetching
from app.screens.preferences import Preferences
from app.settings.file import Settings
from app.settings.paths import Locations
from app.settings.writer import SettingsWriter
from app.tools.servers import ToolServers

if TYPE_CHECKING:
    from app.fetch.fetch import Fetch

EXIT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Ears:
    """Who hears of the services; all of it on the loop's thread."""

    history_warning: Callable[[str], None]
    settings_warning: Callable[[str], None]
    flushed: Callable[[], None]
    """Text was carried to the conversations."""
    fetched: Callable[["Fetch"], None]
    changed: Callable[[str, str], None]
    """A setting has another value."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asks for besides the settings."""

    model: Path | None = None
    folders: Sequence[Path] = ()
    chat: str | None = None
    """Id of the chat to show."""
    warnings: Sequence[str] = field(default=())
    """What was wrong with the settings."""


def wire(
    loop: asyncio.AbstractEventLoop,
    settings: Settings,
    places: Locations,
    factory: EngineFactory,
    ears: Ears,
    asked: Asked,
    history: HistoryStore | None = None,
) -> AppContext:
    """Make the services and what the screens share of them; the engine is not started."""
    # What is delivered from the loader's thread must find the app in its context variables.
    variables = contextvars.copy_context()

    def deliver(work: Callable[[], None]) -> None:
        # The loop may be closed while a load still reports progress.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(work, context=variables)

    def later(hear: Callable[[str], None]) -> Callable[[str], None]:
        return lambda message: deliver(partial(hear, message))

    kept = history or HistoryStore(places.history_file, on_warning=later(ears.history_warning))
    endpoints = Endpoints(settings.endpoints)
    idle = 60.0 * settings.engine.idle_unload_minutes
    context_of = ModelNotes(places.notes_file).context_of
    engine = EngineService(factory, deliver, idle_seconds=idle, elsewhere=endpoints, context_of=context_of)
    measured = Measured(places, engine.stats)
    services = Services(
        *(engine, Pump(loop, ears.flushed), kept, dict(settings.keys)),
        stop_repeats=settings.general.stop_repeats,
        tools=ToolServers(lambda: settings.tools),
        measured=measured,
    )
    context = AppContext(
        *(settings, places, kept, engine, services, Fetching(places, deliver, ears.fetched), endpoints),
        folders=asked.folders,
        chosen=asked.model,
        named_chat=asked.chat,
        warnings=asked.warnings,
    )
    writer = SettingsWriter(places.settings_file, later(ears.settings_warning))
    context.preferences = Preferences(context, writer, ears.changed)
    return context


def end_services(context: AppContext) -> bool:
    """End fetches, engine, settings and history, each within a few seconds.

    Tells whether everything that was written is saved.
    """
    if context.services.tools is not None:
        context.services.tools.close(EXIT_SECONDS)
    context.fetching.close(EXIT_SECONDS)
    context.endpoints.close(EXIT_SECONDS)
    context.engine.close(EXIT_SECONDS)
    if (measured := context.services.measured) is not None:
        measured.close()
    context.preferences.close(EXIT_SECONDS)
    return context.history.close(EXIT_SECONDS)
