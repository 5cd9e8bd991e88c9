"""What is said and saved when the app itself fails."""

from contextlib import nullcontext

import pytest

from app.settings.file import Settings
from app.settings.paths import HOME_VARIABLE
from app.window import app as window
from app.window.app import ChatApp
from tests.app.driving import chat, ready, wait_until
from tests.app.screens.chat.test_answers import ask


class Boom(Exception):
    """What a widget fails with."""


async def test_what_failed_first_is_the_reason_and_the_draft_is_saved(make_app, engine, monkeypatch):
    app = make_app()
    with pytest.raises(Boom):
        async with app.run_test(size=(80, 24)) as pilot:
            screen = await ready(pilot)
            screen.composer.insert("not sent yet")
            conversation = screen.active.conversation

            def fail(*_):
                raise Boom("what came first")

            monkeypatch.setattr(screen.composer, "fit_height", fail)
            await pilot.press("!")
    assert isinstance(app.crash, Boom)
    assert conversation.draft.startswith("not sent yet")
    app.end_services()


async def test_a_failure_to_save_is_said_and_the_terminal_restored(make_app, engine, monkeypatch):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        screen = chat(app)

        def fail():
            raise Boom("no room")

        monkeypatch.setattr(screen, "shut_down", fail)
    assert isinstance(app.crash, Boom) and not app.is_running
    app.end_services()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Boom("a\x1b[2J\nb"), "tui-chat failed: a\x1b[2J b; details"),
        (Boom(), "tui-chat failed: Boom; details"),
    ],
)
def test_the_reason_is_one_line_on_stderr(home, monkeypatch, capsys, error, said):
    def fail(self):
        self.crash = error

    monkeypatch.setattr(ChatApp, "run", fail)
    monkeypatch.setattr("app.terminal.fd_guard.guarded_descriptors", lambda _: nullcontext())
    assert window.run_app(Settings()) == 1
    shown = capsys.readouterr().err
    assert shown.startswith(said) and shown.count("\n") == 1


@pytest.fixture
def no_home(home, monkeypatch):
    """A home in which nothing can be made, not even by root."""
    (home / "file").touch()
    monkeypatch.setenv(HOME_VARIABLE, str(home / "file" / "home"))


def test_without_a_home_that_can_be_written_the_app_starts(no_home, monkeypatch):
    monkeypatch.setattr(ChatApp, "run", lambda _: 7)
    assert window.run_app(Settings()) == 7


async def test_without_a_home_that_can_be_written_it_answers(no_home, make_app, engine):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        await ask(pilot, engine, "question", "answer")
        app.context.preferences.change("general", "theme", "moss")
        await wait_until(pilot, lambda: any("not saved" in n.message for n in app._notifications))
    app.end_services()
    assert app.crash is None
