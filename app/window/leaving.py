"""The private methods through which Textual leaves, on every way out."""

import logging
import sys
from collections.abc import Callable

from textual.app import App

log = logging.getLogger(__name__)


class LeavingApp(App[int]):
    """Saves on every way out; a failure goes to the log file, not on the screen."""

    def __init__(self, save: Callable[[], None]) -> None:
        """save: called on the way out, while the widgets are still there."""
        super().__init__()
        self.crash: BaseException | None = None
        self._save_on_leaving = save

    async def _shutdown(self) -> None:
        self._save_on_leaving()
        await super()._shutdown()

    def _fatal_error(self) -> None:
        self.crash = sys.exc_info()[1]
        log.exception("the app failed")
        self._close_messages_no_wait()
