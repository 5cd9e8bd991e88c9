"""A chat as it is written to a file or read from one."""

from dataclasses import dataclass

from app.chat.conversation import Conversation
from app.chat.marks import NO_MARKS, Marks


@dataclass(frozen=True, slots=True)
class KeptChat:
    """A conversation and how its reader keeps it in order."""

    conversation: Conversation
    marks: Marks = NO_MARKS


class ChatFileError(Exception):
    """A file, or a chat in it, cannot be read; the message is one line that says why."""
