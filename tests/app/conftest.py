"""Fixtures of the UI tests: an app over a fake engine, in a home of its own."""

from collections.abc import Callable
from pathlib import Path

import pytest
import textual.app
import textual.pilot
from textual.notifications import Notification

from app.fetch import catalogue
from app.screens.chat import beat
from app.settings.file import GeneralSettings, Settings
from app.settings.paths import HOME_VARIABLE, locations
from app.window.app import ChatApp
from tests.app.computer import give_memory
from tests.app.driving import wait_for_idle
from tests.support.fakes import FakeEngine
from tests.support.shared_styles import share_styles


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    monkeypatch.setenv("TEXTUAL_ANIMATIONS", "none")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    return tmp_path


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pilots wait in steps of milliseconds: with Textual's own, half of the tests' time was sleep."""
    monkeypatch.setattr(textual.app, "wait_for_idle", wait_for_idle)
    monkeypatch.setattr(textual.pilot, "wait_for_idle", wait_for_idle)


@pytest.fixture(autouse=True)
def parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    share_styles(monkeypatch)


@pytest.fixture(autouse=True)
def notices_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, what was said can be read until the test has looked."""
    monkeypatch.setattr(Notification, "has_expired", False)


@pytest.fixture
def short_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """The screen's numbers come to rest after as many beats, but sooner."""
    monkeypatch.setattr(beat, "_BEAT", 0.04)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def nothing_to_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model is offered, whatever the catalogue holds and this computer has room for."""
    monkeypatch.setattr(catalogue, "read_catalogue", lambda own=None: ([], []))
    give_memory(monkeypatch, 8 * 10**9)


@pytest.fixture
def make_app(home: Path, engine: FakeEngine, nothing_to_fetch: None) -> Callable[..., ChatApp]:
    def make(settings: Settings | None = None, **options) -> ChatApp:
        settings = settings or Settings(general=GeneralSettings(restore_tabs=True))
        app = ChatApp(settings, engine_factory=lambda: engine, places=locations(), **options)
        app.animation_level = "none"
        return app

    return make
