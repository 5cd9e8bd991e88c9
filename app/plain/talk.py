"""The chats of plain mode: what is written goes to the chat in front, what is answered is written out."""

import asyncio
import sys
from pathlib import Path
from typing import TextIO

from app.chat.conversation import Conversation, MessageNode, Role, Status
from app.chat.events import (
    AnswerFinished,
    CallAsked,
    Changed,
    Notice,
    PathChanged,
    PlanAsked,
    SessionEvent,
    TabState,
    TextReturned,
    TextStreamed,
)
from app.chat.reasoning import Part
from app.chat.session import ChatSession
from app.models.builtin import model_title
from app.models.fit.plan_words import plan_text
from app.screens.chat.tabs import Tabs
from app.screens.context import AppContext
from app.settings.words import count_text
from app.terminal.controls import for_stream

_ROLES = {Role.USER: "You", Role.ASSISTANT: "Answer", Role.SYSTEM: "System", Role.TOOL: "Tool"}
_ENDS = {Status.STOPPED: "stopped", Status.ERROR: "failed"}


class Talk:
    """Open chats, the one in front, and the words on their way to `out`."""

    def __init__(self, context: AppContext, out: TextIO = sys.stdout) -> None:
        self.context = context
        self.tabs = Tabs(context, self._on_session)
        self.changed = asyncio.Event()
        """Set when a chat does something else than before."""
        self._out = out
        self._at_line_start = True
        self._prompt = ""
        """What stands before the line that is waited for."""
        self._part: Part | None = None
        """What of the answer was written last."""
        self._said: dict[str, str] = {}
        """What was said last of each chat's model."""

    @property
    def active(self) -> ChatSession:
        """The chat in front."""
        return self.tabs.active

    @property
    def busy(self) -> bool:
        """Whether the chat in front is answering, or will once its model is there, and asks nothing."""
        return _is_busy(self.active)

    @property
    def any_busy(self) -> bool:
        """Whether any chat is answering or about to, and asks nothing."""
        return any(map(_is_busy, self.tabs.sessions))

    def say(self, text: str) -> None:
        """Write a line of its own."""
        self._begin_line()
        self._write(f"{text}\n")
        self._show_prompt()

    def wait_for_line(self, prompt: str) -> None:
        """Write what a line of the reader's stands behind, as soon as nothing is being answered."""
        self._prompt = prompt
        self._show_prompt()

    def line_came(self, line: str | None = None) -> None:
        """Go on behind a line that was typed; one from a file is written out."""
        if line is None:
            self._at_line_start = True
        else:
            self._write(f"{line}\n")
        self._prompt = ""

    def _show_prompt(self) -> None:
        if self._prompt and not self.busy:
            self._begin_line()
            self._write(self._prompt)

    def open(self, conversation: Conversation, *, read_only: bool = False) -> None:
        """Give a chat a tab at the end and go there."""
        session = self.tabs.add(conversation, read_only=read_only)
        self.context.history.save(conversation)
        if not read_only:
            self.tabs.open_model(session)
        self.go(len(self.tabs.sessions) - 1)

    def go(self, index: int) -> None:
        """Bring a chat to the front and say where one is."""
        self.tabs.position = index
        session, sessions = self.active, self.tabs.sessions
        session.unread = False
        self.tabs.save()
        self.tabs.refocus()
        where = f"Chat {index + 1} of {len(sessions)}: {session.conversation.title}."
        self.say(where + (" Another window writes it; /take_over asks for it." if session.read_only else ""))
        if session.writing.draft.expanded.strip():
            self.say(f"A draft waits here; /send sends it: {session.writing.draft.expanded}")
        last = session.conversation.last_answer()
        if last is not None:
            self._part = None
            self.show(last)

    def show(self, node: MessageNode) -> None:
        """Write a message out."""
        self.say(f"{_ROLES[node.role]}: {node.text or '(nothing)'}")
        if node.status in _ENDS:
            self.say(f"({_ENDS[node.status]}{': ' + node.error if node.error else ''})")

    def send(self, text: str) -> None:
        """Ask the chat in front."""
        session = self.active
        if session.read_only:
            self.say("Not sent: another window writes this chat. /take_over asks for it.")
            session.writing.take_back(text)
            return
        waits = session.busy or session.models.loading
        session.send(text)
        if waits and session.queued:
            what = "the answer" if session.busy else "the model"
            self.say(f"(waits for {what})")

    def close(self, session: ChatSession) -> None:
        """Close a tab; after the last one an empty chat opens."""
        session.close()
        if len(self.tabs.sessions) == 1:
            self.tabs.open_model(self.tabs.add(self.context.new_conversation()))
        self.tabs.remove(session)
        if not session.conversation.nodes and not session.conversation.draft:
            self.context.history.discard(session.conversation.id)
        self.go(self.tabs.position)

    def _on_session(self, session: ChatSession, event: SessionEvent) -> None:
        visible = session is self.active
        if isinstance(event, TextStreamed) and visible:
            for part, text in event.pieces:
                self._stream(part, text)
        elif isinstance(event, AnswerFinished):
            self._finished(session, session.conversation.nodes[event.node_id], visible=visible)
        elif isinstance(event, TextReturned):
            session.writing.take_back(event.text, event.editing)
            self.say("Not sent; the text waits as this chat's draft, and /send sends it.")
        elif isinstance(event, Notice):
            self.say(event.text if visible else f"{session.conversation.title}: {event.text}")
        elif isinstance(event, PlanAsked):
            self._say_plan(session)
        elif isinstance(event, CallAsked):
            self._say_call(session)
        elif isinstance(event, PathChanged) and event.since is not None:
            self._say_result(session, session.conversation.nodes[event.since])
        elif isinstance(event, Changed):
            self._say_model(session)
        if not isinstance(event, TextStreamed):
            self.tabs.refocus()
            self.changed.set()

    def _stream(self, part: Part, text: str) -> None:
        if part is not self._part:
            self._begin_line()
            self._write("Thinking: " if part is Part.REASONING else "Answer: ")
            self._part = part
        self._write(text)

    def _finished(self, session: ChatSession, node: MessageNode, *, visible: bool) -> None:
        end = _ENDS.get(node.status, "")
        why = f": {node.error}" if node.error else ""
        if visible:
            self._part = None
            self._begin_line()
            if end or why:
                self.say(f"({end or 'ended'}{why})")
            else:
                self._show_prompt()
        else:
            session.unread = True
            number = self.tabs.sessions.index(session) + 1 if session in self.tabs.sessions else 0
            self.say(f"(chat {number}, {session.conversation.title}: {end or 'has answered'}{why})")

    def _say_model(self, session: ChatSession) -> None:
        """Say once that a model is being opened, is there, or is not."""
        models = session.models
        if models.loading_path is not None:
            text = f"(opening {model_title(models.loading_path)})"
        elif models.error is not None and models.current is None:
            text = models.error
        elif models.current is not None:
            text = f"({model_title(models.current.path)} answers here)"
        else:
            return
        if session is self.active and self._said.get(session.conversation.id) != text:
            self._said[session.conversation.id] = text
            self.say(text)

    def _say_plan(self, session: ChatSession) -> None:
        plan = session.models.asked
        if plan is not None:
            title = model_title(session.models.loading_path or Path())
            self.say(f"To open {title}: {plan_text(plan)}. /yes goes on, /stop leaves everything as it is.")

    def _say_call(self, session: ChatSession) -> None:
        """Write out what a model asks for, with all of its arguments."""
        asked = session.tools.asking
        if asked is not None:
            what = f"{asked.tool.name} of {asked.tool.server} with {' '.join(asked.call.text.split())}"
            self.say(f"{asked.who} asks for {what}. /yes lets it run, /always in this chat, /no refuses.")

    def _say_result(self, session: ChatSession, node: MessageNode) -> None:
        """Say what came of a call once it has ended."""
        if node.role is not Role.TOOL or node.status is Status.STREAMING or session is not self.active:
            return
        name = node.calls[0].name if node.calls else "a tool"
        if node.status is Status.COMPLETE:
            end = f"{len(node.text):,} characters"
        elif node.status is Status.ERROR:
            end = f"failed, {node.error or node.text}"
        else:
            end = node.error or "stopped"
        self.say(f"({name}: {end})")

    def _begin_line(self) -> None:
        if not self._at_line_start:
            self._write("\n")

    def _write(self, text: str) -> None:
        if text:
            self._at_line_start = text.endswith("\n")
            self._out.write(for_stream(text, self._out))
            self._out.flush()


def _is_busy(session: ChatSession) -> bool:
    asks = session.tools.state is TabState.ASKING
    return (session.busy and not asks) or bool(session.queued and session.models.loading)


def chat_line(number: int, session: ChatSession) -> str:
    """Return what a list of chats says of one."""
    unread = ", unread" if session.unread else ""
    asked = sum(node.role is Role.USER for node in session.conversation.path())
    return f"{number}. {session.conversation.title} ({count_text(asked)} asked, {session.state}{unread})"
