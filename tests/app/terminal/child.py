"""The app over the fake engine in a terminal of its own; run as a program by tests."""

import sys

import app.window.app as window
from app.screens.chat.screen import ChatScreen
from app.settings.file import Settings
from tests.support.fakes import FakeEngine


def fail(self):
    raise RuntimeError("made to fail")


if __name__ == "__main__":
    window.engine_factory = lambda settings: FakeEngine
    window.map_torch_libraries = lambda: None
    if "--fail" in sys.argv:
        ChatScreen.action_help = fail
    sys.exit(window.run_app(Settings()))
