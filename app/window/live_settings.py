"""What settings mean for the app that runs: at the start, and when one is changed."""

from typing import TYPE_CHECKING

from app.settings import actions
from app.settings.file import Settings
from app.settings.keys import wrong_keys

if TYPE_CHECKING:
    from app.window.app import ChatApp


class LiveSettings:
    """Carries out settings that hold at once."""

    def __init__(self, app: "ChatApp", warnings: list[str]) -> None:
        """warnings: takes what is wrong with the person's keys."""
        self._app = app
        warnings += wrong_keys(app.settings.keys, actions.label_of("help", app.settings.keys))
        self._apply_all(app.settings)

    def apply(self, section: str, name: str) -> None:
        """Follow a setting that was changed."""
        app = self._app
        assert app.context is not None
        settings = app.settings = app.context.settings
        if (section, name) == ("general", "theme"):
            app.context.looks.show(settings.general.theme)
        if section == "keys":
            problems = wrong_keys(settings.keys, actions.label_of("help", settings.keys))
            for problem in problems:
                if problem.startswith(f"keys.{name}"):
                    app.notify(problem, severity="warning", timeout=10)
        self._apply_all(settings)
        if (screen := app.chat_screen) is not None:
            screen.settings_changed()

    def _apply_all(self, settings: Settings) -> None:
        known = {action.id for action in actions.ACTIONS}
        self._app.set_keymap({name: keys for name, keys in settings.keys.items() if name in known})
