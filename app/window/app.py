"""The Textual app: it wires settings, history, themes and the engine to the chat screen."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import SystemCommand
from textual.events import DescendantFocus
from textual.filter import LineFilter
from textual.screen import Screen
from textual.widgets import Input, TextArea

from app.history.store import HistoryStore
from app.models.endpoint_keys import absolute
from app.models.make import make_engine, switch_often
from app.models.port import EngineFactory, EnginePort
from app.models.torch_start import map_torch_libraries, wait_for_libraries
from app.screens.chat.screen import ChatScreen
from app.screens.context import AppContext, Copy, Finder
from app.screens.wiring import EXIT_SECONDS, Asked, Ears, end_services, wire
from app.serve.door import Door
from app.settings import actions
from app.settings.file import DEFAULT_THEME, EngineSettings, Settings
from app.settings.paths import Locations, locations
from app.settings.themes import variable_defaults
from app.terminal.alt_keys import read_alt_keys
from app.terminal.controls import clean, clean_lines, for_stream
from app.terminal.driver import write_from_app
from app.terminal.log_file import logging_to
from app.widgets.pick_list import Palette
from app.window.leaving import LeavingApp
from app.window.live_settings import LiveSettings
from app.window.themes import Themes
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
_MANY_CORES = 8
_FIRST_KEY_SECONDS = 0.12


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
        listening: socket.socket | None = None,
    ) -> None:
        """chat: id of the one to show; meanwhile: called once before the first frame, when the app's own
        threads run; listening: where other programs are served.
        """
        read_alt_keys()
        super().__init__(self.save_all)
        # Classes of screens that name none of their own: low dialogs do without air.
        self.VERTICAL_BREAKPOINTS = [(0, "-low"), (20, "-high")]
        self.settings = settings
        self.places = places or locations()
        self.warnings = list(warnings)
        self._factory = engine_factory
        self._history = history
        self._choice = (model, tuple(folders), chat)
        self._copy, self._find_models = copy, find_models
        self._meanwhile = meanwhile
        self._listening = listening
        self._door: Door | None = None
        self.context: AppContext | None = None
        self._themes = Themes(self, self.places.themes, self._warn)
        self._apply_themes()
        self.live = LiveSettings(self, self.warnings)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Let lines pass through what the settings ask for, too."""
        return [*super().get_line_filters(), *self.live.filters]

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        """Still the cursor of what is written in, where nothing is to move."""
        if self.live.still and isinstance(event.widget, Input | TextArea):
            event.widget.cursor_blink = False

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Give the app's own colour variables to themes that do not know them."""
        theme = self.available_themes.get(self.theme)
        return variable_defaults(theme.to_color_system().generate() if theme is not None else {})

    def _apply_themes(self) -> None:
        self.warnings += self._themes.load()
        wanted = self.settings.general.theme
        if wanted not in self.available_themes:
            names = ", ".join(theme.name for theme in self._themes.choices())
            self.warnings.append(
                f"general.theme: there is no theme {wanted!r} among {names}; {DEFAULT_THEME} is used"
            )
            wanted = DEFAULT_THEME
        if wanted in self.available_themes:
            self.theme = wanted

    def on_mount(self) -> None:
        """Wire the services and show the chat screen."""
        loop = asyncio.get_running_loop()
        self.context = self._make_context(loop)
        screen = ChatScreen(self.context)
        self.push_screen(screen)
        self._themes.watch()
        self._watch_signals(loop)
        if self._meanwhile is not None:
            self._meanwhile()
        self.call_after_refresh(self._after_first_frame)

    def _make_context(self, loop: asyncio.AbstractEventLoop) -> AppContext:
        model, folders, chat = self._choice
        ears = Ears(
            history_warning=self._on_history_warning,
            settings_warning=partial(self.notify, severity="warning"),
            flushed=self._after_flush,
            fetched=self._on_fetch,
            changed=self.live.apply,
        )
        asked = Asked(model, folders, chat, self.warnings)
        context = wire(loop, self.settings, self.places, self._factory, ears, asked, self._history)
        context.looks = self._themes
        context.tell = partial(write_from_app, self)
        if self._copy is not None:
            context.copy = self._copy
        if self._find_models is not None:
            context.find_models = self._find_models
        return context

    def _after_first_frame(self) -> None:
        assert self.context is not None
        # Until the warm-up is over a full collection would look through all that the start has made.
        gc.freeze()
        gc.enable()
        self.context.engine.start()
        self._open_door(self.context)
        if (screen := self.chat_screen) is not None:
            screen.run_worker(screen.restore(), group="restore")
        self.set_timer(_WARM_UP, _freeze_garbage)

    def _open_door(self, context: AppContext) -> None:
        if self._listening is None:
            return
        engine = context.engine
        self._door = Door(
            *(self._listening, engine.resident, engine.stats, lambda: context.settings.sampling),
            self.places.doors,
        )
        self._door.open()
        self.notify(f"Other programs are served at {self._door.address}")

    def _on_history_warning(self, message: str) -> None:
        self._warn(message)
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
        yield SystemCommand(
            "Delete saved contexts",
            "Delete what files hold of all chats' contexts; they are read again when they go on",
            lambda: self.run_worker(chat.delete_contexts(), group="delete contexts"),
        )
        for priority in Priority:
            mark = ", as it is now" if chat.active.conversation.priority is priority else ""
            help = f"This chat's share while others work too: {priority}{mark}"
            yield SystemCommand(f"Priority {priority}", help, partial(chat.set_priority, priority))

    def _warn(self, message: str) -> None:
        self.notify(message, severity="warning", timeout=10)

    def _watch_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.is_headless or threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            with contextlib.suppress(NotImplementedError, ValueError):
                loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        self.exit(128 + number)

    def action_command_palette(self) -> None:
        """Search every command; over a dialog there is none."""
        if self.screen is self.chat_screen:
            self.push_screen(Palette())

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
        """End everything behind the screens; the terminal is already restored.

        Tells whether everything that was written is saved.
        """
        if self._door is not None:
            self._door.close(EXIT_SECONDS)
        return self.context is None or end_services(self.context)


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
    """Keep torch's workers from spinning where that would keep the app's thread off its core.

    With many cores there is one for it, and workers that sleep would be late for the next product. Read when
    their library is mapped, so it comes before that.
    """
    if (os.cpu_count() or 1) < _MANY_CORES:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def run_app(
    settings: Settings,
    model: str | Path | None = None,
    folders: Sequence[str | Path] = (),
    warnings: Sequence[str] = (),
    chat: str | None = None,
    listening: socket.socket | None = None,
) -> int:
    """Run the chat until the reader leaves; return the exit code. `chat`: id of the one to show.

    listening: where other programs are served, None for nowhere.

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
            model=absolute(model) if model else None,
            folders=[Path(folder).expanduser().absolute() for folder in folders],
            chat=chat,
            warnings=warnings,
            listening=listening,
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
