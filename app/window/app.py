"""The Textual app: it wires settings, history, themes and the engine to the chat screen."""

import asyncio
import contextlib
import contextvars
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import SystemCommand
from textual.screen import Screen
from textual.theme import Theme, ThemeProvider

from app.chat.measured import Measured
from app.chat.pump import Pump
from app.chat.shared import Services
from app.history.store import HistoryStore
from app.models.loader import EngineService
from app.models.make import make_engine, switch_often
from app.models.port import EngineFactory, EnginePort
from app.models.torch_start import map_torch_libraries, wait_for_libraries
from app.screens.chat.screen import ChatScreen
from app.screens.context import AppContext, Copy, Finder
from app.screens.fetching import Fetching
from app.settings import actions
from app.settings.file import DEFAULT_THEME, EngineSettings, Settings
from app.settings.paths import Locations, locations
from app.settings.themes import variable_defaults
from app.settings.writer import SettingsWriter
from app.terminal.alt_keys import read_alt_keys
from app.terminal.controls import clean, clean_lines, for_stream
from app.terminal.log_file import logging_to
from app.widgets.pick_list import Palette
from app.window.leaving import LeavingApp
from app.window.themes import textual_themes
from engine import Priority

if TYPE_CHECKING:
    from app.fetch.fetch import Fetch

_STYLES = (
    "app.tcss",
    "../widgets/lines.tcss",
    "../widgets/tab_bar.tcss",
    "../screens/chat/deck.tcss",
    "../widgets/live_panel.tcss",
    "../widgets/notice_bar.tcss",
    "../widgets/writing/composer.tcss",
    "../widgets/writing/completions.tcss",
    "../widgets/status_line.tcss",
)
_WARM_UP = 8.0
_FIRST_KEY_SECONDS = 0.12
_EXIT_SECONDS = 5.0


class ChatApp(LeavingApp):
    """Makes the services on start and ends them on exit."""

    TITLE = "tui-chat"
    CSS_PATH: ClassVar = [*_STYLES]
    ENABLE_COMMAND_PALETTE = True

    def __init__(
        self,
        settings: Settings,
        *,
        engine_factory: EngineFactory,
        places: Locations | None = None,
        history: HistoryStore | None = None,
        model: Path | None = None,
        folders: Sequence[Path] = (),
        chat: str | None = None,
        warnings: Sequence[str] = (),
        copy: Copy | None = None,
        find_models: Finder | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """chat: id of the one to show; meanwhile: called once before the first frame, when the app's own
        threads run.
        """
        read_alt_keys()
        super().__init__(self.save_all)
        self.settings = settings
        self.places = places or locations()
        self.warnings = list(warnings)
        self._factory = engine_factory
        self._history = history
        self._choice = (model, tuple(folders), chat)
        self._copy, self._find_models = copy, find_models
        self._meanwhile = meanwhile
        self.context: AppContext | None = None
        self._settings_writer: SettingsWriter | None = None
        self._apply_themes()
        self._apply_keys()

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Give the app's own colour variables to themes that do not know them."""
        theme = self.available_themes.get(self.theme)
        return variable_defaults(theme.to_color_system().generate() if theme is not None else {})

    def _apply_themes(self) -> None:
        themes, warnings = textual_themes(self.places.themes)
        self.warnings += warnings
        for theme in themes:
            self.register_theme(theme)
        wanted = self.settings.general.theme
        if wanted not in self.available_themes:
            names = ", ".join(sorted(theme.name for theme in themes))
            self.warnings.append(
                f"general.theme: there is no theme {wanted!r} among {names}; {DEFAULT_THEME} is used"
            )
            wanted = DEFAULT_THEME
        if wanted in self.available_themes:
            self.theme = wanted

    def _apply_keys(self) -> None:
        known = {action.id for action in actions.ACTIONS}
        help_key = actions.label_of("help", self.settings.keys)
        for name in self.settings.keys:
            if name not in known:
                self.warnings.append(f"keys.{name}: there is no such action; {help_key} lists them")
        self.set_keymap({name: keys for name, keys in self.settings.keys.items() if name in known})

    def on_mount(self) -> None:
        """Wire the services and show the chat screen."""
        loop = asyncio.get_running_loop()
        self.context = self._make_context(loop)
        screen = ChatScreen(self.context)
        self.push_screen(screen)
        self.theme_changed_signal.subscribe(self, self._on_theme_changed)
        self._watch_signals(loop)
        if self._meanwhile is not None:
            self._meanwhile()
        self.call_after_refresh(self._after_first_frame)

    def _make_context(self, loop: asyncio.AbstractEventLoop) -> AppContext:
        # What is delivered from the loader's thread must find the app in its context variables.
        variables = contextvars.copy_context()

        def deliver(work: Callable[[], None]) -> None:
            # The loop may be closed while a load still reports progress.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(work, context=variables)

        def warn(message: str) -> None:
            deliver(partial(self._on_history_warning, message))

        def warn_of_settings(message: str) -> None:
            deliver(partial(self.notify, message, severity="warning"))

        self._settings_writer = SettingsWriter(self.places.settings_file, warn_of_settings)
        history = self._history or HistoryStore(self.places.history_file, on_warning=warn)
        idle_seconds = 60.0 * self.settings.engine.idle_unload_minutes
        engine = EngineService(self._factory, deliver, idle_seconds=idle_seconds)
        pump = Pump(loop, self._after_flush)
        model, folders, chat = self._choice
        services = Services(
            *(engine, pump, history, self.settings.keys),
            stop_repeats=self.settings.general.stop_repeats,
            measured=Measured(self.places, engine.stats),
        )
        fetching = Fetching(self.places, deliver, self._on_fetch)
        context = AppContext(
            *(self.settings, self.places, history, engine, services, fetching),
            folders=folders,
            chosen=model,
            named_chat=chat,
            warnings=self.warnings,
        )
        if self._copy is not None:
            context.copy = self._copy
        if self._find_models is not None:
            context.find_models = self._find_models
        return context

    def _after_first_frame(self) -> None:
        assert self.context is not None
        gc.enable()
        self.context.engine.start()
        if (screen := self.chat_screen) is not None:
            screen.run_worker(screen.restore(), group="restore")
        self.set_timer(_WARM_UP, _freeze_garbage)

    def _on_history_warning(self, message: str) -> None:
        self.notify(message, severity="warning", timeout=10)
        if (screen := self.chat_screen) is not None:
            screen.beat.draw()

    def _on_fetch(self, fetch: "Fetch") -> None:
        """A fetch goes on or has ended."""
        if (screen := self.chat_screen) is not None:
            screen.fetch_changed(fetch)

    def _after_flush(self) -> None:
        """Show the numbers in the frame that paints the text."""
        if (screen := self.chat_screen) is not None:
            screen.beat.with_text()

    @property
    def chat_screen(self) -> ChatScreen | None:
        """The chat screen, whatever is on top of it."""
        return next((screen for screen in self.screen_stack if isinstance(screen, ChatScreen)), None)

    def get_system_commands(self, screen: Screen) -> Iterable[SystemCommand]:
        """Offer every action of the registry over the chat screen."""
        chat = self.chat_screen
        if chat is None or screen is not chat or not chat.tabs.sessions:
            return
        for action in actions.ACTIONS:
            if action.palette:
                key = actions.label_of(action.id, self.settings.keys)
                yield SystemCommand(
                    action.title, f"{action.help} ({key})", getattr(chat, f"action_{action.id}")
                )
        for title, help, work in (*chat.model_commands(), *chat.thinking_commands()):
            yield SystemCommand(title, help, work)
        for priority in Priority:
            mark = ", as it is now" if chat.active.conversation.priority is priority else ""
            help = f"This chat's share while others work too: {priority}{mark}"
            yield SystemCommand(f"Priority {priority}", help, partial(chat.set_priority, priority))

    def _on_theme_changed(self, theme: Theme) -> None:
        if theme.name == self.settings.general.theme:
            return
        self.settings = replace(self.settings, general=replace(self.settings.general, theme=theme.name))
        if self.context is not None:
            self.context.settings = self.settings
        if self._settings_writer is not None:
            self._settings_writer.save("general", "theme", theme.name)

    def _watch_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.is_headless or threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGHUP):
            with contextlib.suppress(NotImplementedError, ValueError):
                loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        self.exit(128 + number)

    def action_command_palette(self) -> None:
        """Search every command; over a dialog there is none."""
        if self.screen is self.chat_screen:
            self.push_screen(Palette())

    def search_themes(self) -> None:
        """Search every theme."""
        self.push_screen(Palette(providers=[ThemeProvider], placeholder="Search for themes…"))

    def notify(self, message: str, *, title: str = "", **more: Any) -> None:
        """Show a toast; no text of it is markup or steers a terminal."""
        super().notify(clean_lines(message), title=clean(title), **(more | {"markup": False}))

    def action_help_quit(self) -> None:
        """Say what leaves, for those who try Ctrl+C in a dialog."""
        self.notify(f"{actions.label_of('quit_app', self.settings.keys)} leaves; Esc closes this.")

    async def action_quit(self) -> None:
        """Leave; everything is saved on the way out, and what cannot be is asked about."""
        if (screen := self.chat_screen) is not None:
            screen.leave()
        else:
            self.exit(0)

    def save_all(self) -> None:
        """Carry the last text over and save every chat. Calling it again does nothing."""
        if self.context is None or self.context.services.pump.closed:
            return
        self.context.services.pump.close()
        self.context.fetching.leave()
        if (screen := self.chat_screen) is not None:
            screen.shut_down()
        self.context.services.encoders.shutdown(wait=False, cancel_futures=True)

    def end_services(self) -> bool:
        """End fetches, engine, settings and history, each within a few seconds; the terminal is already
        restored.

        Tells whether everything that was written is saved.
        """
        if self.context is None:
            return True
        self.context.fetching.close(_EXIT_SECONDS)
        self.context.engine.close(_EXIT_SECONDS)
        if (measured := self.context.services.measured) is not None:
            measured.close()
        if self._settings_writer is not None:
            self._settings_writer.close(_EXIT_SECONDS)
        return self.context.history.close(_EXIT_SECONDS)


def _freeze_garbage() -> None:
    """Keep what exists after warm-up out of later collections: they would stall frames and ticks."""
    gc.collect()
    gc.freeze()


def engine_factory(settings: EngineSettings) -> EngineFactory:
    """Return what makes the engine; torch is imported when it is called, not before."""

    def make() -> EnginePort:
        switch_often()
        # The first key is the slowest: nothing is imported beside it while torch could not be either.
        wait_for_libraries(_FIRST_KEY_SECONDS)
        # Before the first message needs it, and before torch, which takes ten times as long.
        import app.transcript.view  # noqa: F401

        _rest_between_products()
        return make_engine(settings, keep_kv=True)

    return make


def _rest_between_products() -> None:
    """Keep torch's workers from spinning, which would keep the app's thread off its core.

    Read when their library is mapped, so it comes before that.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def run_app(
    settings: Settings,
    model: str | Path | None = None,
    folders: Sequence[str | Path] = (),
    warnings: Sequence[str] = (),
    chat: str | None = None,
) -> int:
    """Run the chat until the reader leaves; return the exit code. `chat`: id of the one to show.

    `warnings` (about the settings file, say) are told in one line, and in full in the help. 0 after
    leaving, 1 after a failure (which is in the log file), 128 + number after a signal.
    """
    from app.terminal.fd_guard import guarded_descriptors

    places = locations()
    with logging_to(places.log_file):
        app = ChatApp(
            settings,
            engine_factory=engine_factory(settings.engine),
            places=places,
            model=Path(model).expanduser().absolute() if model else None,
            folders=[Path(folder).expanduser().absolute() for folder in folders],
            chat=chat,
            warnings=warnings,
            # Nothing else maps libraries or starts threads then, which wait for each other.
            meanwhile=map_torch_libraries,
        )
        _rest_between_products()
        with guarded_descriptors(places.log_file):
            code = app.run()
            saved = app.end_services()
    if not saved:
        print(f"tui-chat: {places.history_file}: not everything could be saved", file=sys.stderr)
    if app.crash is not None:
        reason = " ".join(str(app.crash).split()) or type(app.crash).__name__
        said = f"tui-chat failed: {reason}; details are in {places.log_file}"
        print(for_stream(said, sys.stderr), file=sys.stderr)
        return 1
    return code if isinstance(code, int) else 0
