"""The chat screen's actions on the message that is being written."""

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial

from textual import on
from textual.app import SuspendNotSupported

from app.chat.conversation import Conversation, Role
from app.chat.draft import Draft
from app.chat.events import SessionEvent
from app.chat.session import ChatSession
from app.screens.chat.base import ChatBase
from app.screens.chat.writing.completing import ChatMention, Completer, Form
from app.screens.context import AppContext
from app.terminal.editor import EditorError, edited, editor_command
from app.widgets.writing.completions import Completions
from app.widgets.writing.composer import Composer
from app.writing.attachment import AttachError, Attachment, read_attachment
from app.writing.blocks import fenced
from app.writing.commands import Command, named
from app.writing.mentions import CHAT, Entry, plain_path


class WritingActions(ChatBase):
    """Runs slash commands, puts prompts in, attaches files and chats, opens the editor."""

    def __init__(self, context: AppContext, report: Callable[[ChatSession, SessionEvent], None]) -> None:
        super().__init__(context, report)
        self.completer = Completer(self.composer, context, partial(self.say, severity="warning"))

    @on(Composer.Called)
    def _on_called(self, event: Composer.Called) -> None:
        command = named(event.name, self.completer.commands)
        if command is None:
            self.say(
                f"There is no command /{event.name}. To send this as a message, write // or a blank first.",
                "warning",
            )
        elif command.prompt is None and event.rest and not command.takes:
            self.say(
                f"/{command.name} takes nothing behind it. To send this as a message, write // or a blank "
                "first.",
                "warning",
            )
        else:
            self._run_command(command, event.rest)

    def _run_command(self, command: Command, rest: str) -> None:
        if command.prompt is not None:
            text = command.prompt.filled(self.get_selected_text() or "", rest)
            self.composer.put(text, fill=True)
        elif rest and command.takes:
            written = self.composer.draft
            self.composer.put("")
            self.call_later(self._run_with, command.name, Draft(rest, written.chips).expanded, written)
        else:
            self.composer.put("")
            self.call_later(self.run_action, command.name)

    async def _run_with(self, name: str, rest: str, written: Draft) -> None:
        """Run an action with what was written behind it, which comes back where that is not done."""
        if not await getattr(self, f"action_{name}")(rest) and not self.composer.text:
            self.composer.draft = written

    @on(Composer.Completed)
    @on(Completions.Picked)
    def _on_completed(self, event: Composer.Completed | Completions.Picked) -> None:
        composer, menu = self.composer, self.composer.completions
        goes_on = isinstance(event, Composer.Completed) and event.goes_on
        chosen = menu.chosen
        if chosen is None or menu.made_for != composer.state:
            return
        what = chosen.value
        composer.focus()
        if isinstance(what, Form):
            composer.put(what.begun)
        elif isinstance(what, Command):
            rest = composer.text[len(composer.before_cursor) :].strip()
            if goes_on:
                written_on = what.prompt is not None or what.takes
                composer.put(f"/{what.name}" + (" " if written_on else "") + rest)
            else:
                menu.hide()
                self._run_command(what, rest if what.prompt is not None or what.takes else "")
        elif isinstance(what, Entry) and what.is_folder and goes_on:
            composer.replace_word(f"@{what.written}")
        elif isinstance(what, ChatMention) and what.id is None:
            composer.replace_word(f"@{CHAT}")
        elif isinstance(what, Entry | ChatMention):
            menu.hide()
            self._attach_soon(what)

    def _attach_soon(self, what: Entry | ChatMention) -> None:
        """Attach once it is read; keys pressed meanwhile come behind it."""
        self.composer.hold()
        self.run_worker(self._put_in(what), group="attach", exit_on_error=False)

    async def _put_in(self, what: Entry | ChatMention) -> None:
        composer, chat = self.composer, self.composer.chat
        try:
            attachment = await self._read(what)
            tokens = await self._tokens(attachment.text)
            if composer.chat == chat:
                composer.attach(attachment, tokens)
            else:
                self.say(f"{attachment.name} was not attached: another chat came to the front.", "warning")
        except AttachError as error:
            self.say(str(error), "warning")
        finally:
            self.call_later(composer.let_go)

    async def _read(self, what: Entry | ChatMention) -> Attachment:
        if isinstance(what, Entry):
            limit = self.context.settings.general.attach_limit_bytes
            return await asyncio.to_thread(read_attachment, what.path, plain_path(what.written), limit)
        index = self.tabs.index_of(what.id or "")
        if index >= 0:
            return chat_attachment(self.tabs.sessions[index].conversation)
        conversation = await asyncio.to_thread(self.context.history.load, what.id or "")
        if conversation is None:
            raise AttachError(f"The chat “{what.title}” is not there any more.")
        return chat_attachment(conversation)

    async def _tokens(self, text: str) -> int | None:
        """How many tokens a text is for the model of the chat in front; None where that is not known."""
        model = self.active.model if self.tabs.sessions else None
        if model is None or model.counter is None:
            return None
        count = partial(model.counter.encode_content, text)
        loop = asyncio.get_running_loop()
        return len(await loop.run_in_executor(self.context.services.encoders, count))

    def action_open_paste(self) -> None:
        """Fold what is selected in the message, or show the text that a chip stands for, to edit it."""
        if not self.composer.fold_selection() and not self.composer.open_chip():
            self.say("There is no chip in the message to open, and nothing selected to fold.")

    def action_edit(self) -> None:
        """Write the message in the reader's own editor."""
        self.run_worker(self._edit(), group="edit", exclusive=True, exit_on_error=False)

    async def _edit(self) -> None:
        composer, chat = self.composer, self.composer.chat
        before = composer.draft.expanded
        try:
            command = editor_command(os.environ)
            # Answers go on and are saved meanwhile; only the screen rests.
            with self.app.batch_update(), self.app.suspend():
                text = await asyncio.to_thread(edited, before, command)
        except (EditorError, SuspendNotSupported) as error:
            self.say(str(error), "warning")
        else:
            self._take_edited(before, text, chat)
        self.refresh(repaint=True, layout=True)

    def _take_edited(self, before: str, text: str, chat: str) -> None:
        if text == before:
            return
        index = self.tabs.index_of(chat)
        if self.composer.chat != chat and index >= 0:
            self.tabs.sessions[index].writing.keep(Draft.folded(text))
            return
        same = self.composer.draft.expanded == before
        self.composer.draft = Draft.folded(text) if same else self.composer.draft.after(text)
        self.keep_draft()


def chat_attachment(conversation: Conversation) -> Attachment:
    """Return the messages that a chat shows, to be put into another one."""
    names = {Role.USER: "User", Role.ASSISTANT: "Assistant", Role.SYSTEM: "System", Role.TOOL: "Tool"}
    told: Sequence[str] = [f"{names[node.role]}: {node.text}" for node in conversation.path() if node.text]
    if not told:
        raise AttachError(f"The chat “{conversation.title}” has no messages.")
    text = "\n\n".join(told)
    return Attachment("chat", conversation.title, fenced("chat", conversation.title, text))
