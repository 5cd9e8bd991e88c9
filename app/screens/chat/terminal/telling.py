"""What the terminal is told of the chats: its title says what goes on, and it tells who looks elsewhere."""

import os
from collections.abc import Callable, Sequence

from textual.app import App
from textual.screen import Screen

from app.chat.conversation import Status
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

    def finished(self, session: ChatSession, node_id: str) -> None:
        """Tell of an answer that has ended, where the terminal has said that nobody looks."""
        how = self._context.settings.terminal.notify
        node = session.conversation.nodes[node_id]
        if self._app.app_focus or node.status not in _ENDS:
            return
        text = f"{session.conversation.title} {_ENDS[node.status]}"
        if said := osc.notification(how, "tui-chat", text, os.environ):
            self._write(said)

    def end(self) -> None:
        """Give the terminal its own title back."""
        if self._title:
            self._title = ""
            self._write(osc.BRING_TITLE_BACK)
