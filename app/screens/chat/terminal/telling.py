"""What the terminal is told of the chats: its title says what goes on, and it tells who looks elsewhere."""

import os
from collections.abc import Callable, Sequence

from textual.app import App
from textual.screen import Screen

from app.chat.conversation import Status
from app.chat.events import AnswerFinished, CallAsked
from app.chat.session import ChatSession
from app.screens.context import AppContext
from app.terminal import osc

_ENDS = {Status.COMPLETE: "has answered", Status.ERROR: "has failed", Status.STOPPED: "has stopped"}


class Telling:
    """Sets the terminal's title and notifies, as the settings have it; `write` sends to the terminal."""

    def __init__(self, app: App[object], context: AppContext, write: Callable[[str], None]) -> None:
        self._app, self._context, self._write = app, context, write
        self._title = ""
        """The title that was set, "" while the terminal has its own."""

    def start(self, screen: Screen[None]) -> None:
        """Give the title back while the reader is in the shell or the editor."""
        self._app.app_suspend_signal.subscribe(screen, lambda _: self.end(), immediate=True)

    def show(self, sessions: Sequence[ChatSession], active: ChatSession) -> None:
        """Say in the title which chat is open and how many are answering."""
        if not self._context.settings.terminal.title:
            self.end()
            return
        answering = sum(session.busy for session in sessions)
        doing = f" ({answering} answering)" if answering else ""
        title = f"{active.conversation.title}{doing} - tui-chat"
        if title != self._title:
            if not self._title:
                self._write(osc.KEEP_TITLE)
            self._title = title
            self._write(osc.title(title))

    def heard(self, session: ChatSession, event: AnswerFinished | CallAsked) -> None:
        """Tell of an answer that has ended or asks for a tool, where the terminal says that nobody looks."""
        how = self._context.settings.terminal.notify
        what = _end(session, event.node_id) if isinstance(event, AnswerFinished) else "asks for a tool"
        if self._app.app_focus or not what:
            return
        text = f"{session.conversation.title} {what}"
        if said := osc.notification(how, "tui-chat", text, os.environ):
            self._write(said)

    def end(self) -> None:
        """Give the terminal its own title back."""
        if self._title:
            self._title = ""
            self._write(osc.BRING_TITLE_BACK)


def _end(session: ChatSession, node_id: str) -> str:
    """How an answer has ended; nothing for one that goes on behind a tool."""
    node = session.conversation.nodes[node_id]
    goes_on = bool(node.calls) and node.status is Status.COMPLETE
    return "" if goes_on else _ENDS.get(node.status, "")
