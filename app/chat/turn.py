"""One turn of a chat, and what is said when the app itself fails at it."""

import logging
from dataclasses import dataclass

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Turn:
    """An answer to ask for: after `parent`, with `text` as the new message, or again as a sibling.

    `replaces` is the message that `text` is another wording of; of an answer it is the beginning of
    another one. `resumes` is an answer that is to go on where it stopped; `above` what is read in the
    place of all that stands above `text`; `step` how many times tools have run in it before.
    """

    parent: str | None
    text: str | None
    again: str | None = None
    replaces: str | None = None
    resumes: str | None = None
    above: str | None = None
    step: int = 0

    @property
    def question(self) -> str | None:
        """The new message of the reader, if there is one."""
        return self.text if self.again is None else None


def own_fault(error: Exception) -> str:
    """Log a fault of the app's own, which ends one chat's answer, and return what is said of it."""
    log.error("an answer breaks off", exc_info=error)
    what = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ")
    return f"The app failed here ({what}); what was written is kept, and the log has more."
