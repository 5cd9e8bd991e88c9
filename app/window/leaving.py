"""The private methods through which Textual leaves, on every way out."""

import logging
import sys
from collections.abc import Callable

from app.window.any_size import AnySizeApp

log = logging.getLogger(__name__)


class LeavingApp(AnySizeApp):
    """Saves on every way out; a failure goes to the log file, not on the screen."""

    def __init__(self, save: Callable[[], None]) -> None:
        """save: called on the way out, while the widgets are still there."""
        super().__init__()
        self.crash: BaseException | None = None
        self._save_on_leaving = save

    async def _shutdown(self) -> None:
        try:
            self._save_on_leaving()
        except Exception as error:
            # The terminal is restored all the same, and what failed first is what is said.
            self.crash = self.crash or error
            log.exception("saving on the way out failed")
        await super()._shutdown()

    def _fatal_error(self) -> None:
        error = sys.exc_info()[1]
        # What fails after the first failure fails for it.
        self.crash = self.crash or error
        log.exception("the app failed")
        self._close_messages_no_wait()
