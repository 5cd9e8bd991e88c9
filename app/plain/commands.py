"""The commands of plain mode: every action of the app by its name, and what else lines need.

A method `do_NAME` carries out the command `/NAME`; its first line is its help. Actions that have none
need a screen.
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from app.chat.conversation import Conversation
from app.history.naming import chats_named
from app.history.statements import ConversationSummary
from app.models.choice import ModelChoiceError, resolve_model
from app.models.recommended import LIMIT
from app.plain.talk import Talk, chat_line
from app.plain.tool_commands import ToolCommands
from app.settings.actions import ACTIONS
from app.settings.table import all_settings
from app.terminal.editor import EditorError, edited, editor_command
from engine import RequestError

SHORT = {
    "new": "new_tab",
    "close": "close_tab",
    "next": "next_tab",
    "previous": "previous_tab",
    "model": "choose_model",
    "again": "regenerate",
    "rename": "rename_tab",
    "export": "export_chat",
    "undo": "undo_delete",
    "copy": "copy_answer",
    "quit": "quit_app",
    "exit": "quit_app",
}
_MOST_LISTED = 20


class Commands(ToolCommands):
    """Carries out what begins with a slash."""

    def __init__(self, talk: Talk, leave: Callable[[], None]) -> None:
        self._talk, self._context = talk, talk.context
        self._say = talk.say
        self._leave = leave
        self._listed: list[ConversationSummary] = []
        """The chats that were listed last: they are opened by their numbers."""
        self._deleted: list[ConversationSummary] = []

    async def run(self, name: str, rest: str) -> bool:
        """Carry out a command; tell whether there is one of this name."""
        known = self._resolve(name)
        if known is None:
            return False
        method = getattr(self, f"do_{known}", None)
        if method is None:
            self._say(f"/{known} needs the screen: it is in tui-chat without --plain.")
        else:
            await method(rest)
        return True

    def _resolve(self, name: str) -> str | None:
        """The command that is meant: by its name, a short one, or a beginning that only one has."""
        own = [attribute.removeprefix("do_") for attribute in dir(self) if attribute.startswith("do_")]
        names = sorted({*own, *(action.id for action in ACTIONS)})
        name = SHORT.get(name, name)
        fitting = [name] if name in names else [known for known in names if known.startswith(name)]
        if len(fitting) > 1:
            self._say(f"/{name} may be {', '.join(f'/{known}' for known in fitting)}.")
        return fitting[0] if len(fitting) == 1 else ("help" if fitting else None)

    async def do_help(self, _: str) -> None:
        """List the commands"""
        short = {long: word for word, long in SHORT.items()}
        named = {action.id: action.help or action.title for action in ACTIONS}
        for attribute in sorted(dir(self)):
            if attribute.startswith("do_"):
                name = attribute.removeprefix("do_")
                also = f", or /{short[name]}" if name in short else ""
                text = getattr(self, attribute).__doc__ or named.get(name, "")
                self._say(f"/{name}{also}: {text}")
        self._say("A message that begins with a slash is written with two. A line that ends with \\ goes on.")

    async def do_new_tab(self, _: str) -> None:
        """Open an empty chat with this one's model"""
        conversation = self._context.new_conversation()
        if (model := self._talk.active.model) is not None:
            conversation.model_path = str(model.path)
        self._talk.open(conversation)

    async def do_close_tab(self, _: str) -> None:
        """Close this chat; /chats lists it"""
        self._talk.close(self._talk.active)

    async def do_tabs(self, _: str) -> None:
        """List the open chats"""
        for number, session in enumerate(self._talk.tabs.sessions, 1):
            mark = " (here)" if session is self._talk.active else ""
            self._say(chat_line(number, session) + mark)

    async def do_go(self, rest: str) -> None:
        """NUMBER: go to an open chat"""
        count = len(self._talk.tabs.sessions)
        if rest.isdecimal() and 1 <= int(rest) <= count:
            self._talk.go(int(rest) - 1)
        else:
            self._say(f"Give the number of an open chat, 1 to {count}, such as /go 2.")

    async def do_next_tab(self, _: str) -> None:
        """Go to the next open chat"""
        self._talk.go((self._talk.tabs.position + 1) % len(self._talk.tabs.sessions))

    async def do_previous_tab(self, _: str) -> None:
        """Go to the open chat before this"""
        self._talk.go((self._talk.tabs.position - 1) % len(self._talk.tabs.sessions))

    async def do_chats(self, rest: str) -> None:
        """[WORDS]: list kept chats, those with the words"""
        history = self._context.history
        search = partial(history.search, rest) if rest else history.recent
        self._listed = await asyncio.to_thread(search, _MOST_LISTED)
        for number, chat in enumerate(self._listed, 1):
            self._say(f"{number}. {chat.title} ({chat.messages} messages)")
        self._say("/open NUMBER opens one." if self._listed else "No chat is kept that fits.")

    async def do_open(self, rest: str) -> None:
        """NUMBER or WORDS: open a kept chat"""
        chat = await self._kept(rest)
        if chat is None:
            return
        index = self._talk.tabs.index_of(chat.id)
        if index >= 0:
            self._talk.go(index)
            return
        conversation = await asyncio.to_thread(self._context.history.load, chat.id)
        if conversation is None:
            self._say("This chat is not there any more.")
            return
        elsewhere = await asyncio.to_thread(self._context.history.written_elsewhere, [chat.id])
        self._talk.open(conversation, read_only=bool(elsewhere))

    async def _kept(self, rest: str) -> ConversationSummary | None:
        """The chat with a number of the last list, or with the words in its title."""
        if rest.isdecimal() and 1 <= int(rest) <= len(self._listed):
            return self._listed[int(rest) - 1]
        chats = await asyncio.to_thread(self._context.history.search, "#all", 100_000)
        found = chats_named(rest, chats)
        if len(found) != 1:
            several = ", ".join(chat.title for chat in found[:5])
            self._say(f"This fits several: {several}." if found else "No chat fits; /chats lists them.")
        return found[0] if len(found) == 1 else None

    async def do_delete(self, rest: str) -> None:
        """NUMBER or WORDS: delete a kept chat; /undo brings it back"""
        chat = await self._kept(rest) if rest else None
        if chat is None:
            return
        history = self._context.history
        if await asyncio.to_thread(history.is_open_elsewhere, chat.id):
            self._say("This chat is open in another window of tui-chat: close its tab there first.")
            return
        index = self._talk.tabs.index_of(chat.id)
        if index >= 0:
            self._talk.close(self._talk.tabs.sessions[index])
        if await asyncio.to_thread(history.hide, chat.id):
            self._deleted.append(chat)
            self._say(f"{chat.title} is deleted; /undo brings it back while this runs.")

    async def do_undo_delete(self, _: str) -> None:
        """Bring back the chat that was deleted last"""
        if not self._deleted:
            self._say("There is no deleted chat to bring back.")
            return
        chat = self._deleted.pop()
        back = await asyncio.to_thread(self._context.history.bring_back, chat.id)
        self._say(f"{chat.title} is back." if back else f"{chat.title} is gone for good.")

    async def do_show(self, _: str) -> None:
        """Write out this whole chat, each message with its number"""
        path = self._talk.active.conversation.path()
        for number, node in enumerate(path, 1):
            self._say(f"Message {number}.")
            self._talk.show(node)
        if not path:
            self._say("There is no message yet.")

    async def do_fork(self, rest: str) -> None:
        """[NUMBER]: go on from a message of this chat in another; /show has the numbers"""
        path = self._talk.active.conversation.path()
        at = int(rest) if rest.isdecimal() else len(path)
        if not 1 <= at <= len(path):
            self._say(
                f"Give the number of a message, 1 to {len(path)}." if path else "There is no message yet."
            )
            return
        self._talk.open(self._talk.active.conversation.fork(path[at - 1].id))

    async def do_rename_tab(self, rest: str) -> None:
        """TITLE: give this chat another title"""
        if rest and self._may_write():
            self._talk.active.rename(rest)
        self._say(f"This chat is {self._talk.active.conversation.title}.")

    async def do_choose_model(self, rest: str) -> None:
        """[NAME]: open another model here; without a name list them"""
        context = self._context
        if not rest:
            models = await asyncio.to_thread(context.find_models, context.model_search())
            for model in models:
                self._say(
                    f"{model.title} ({model.quantization})" + (f": {model.problem}" if model.problem else "")
                )
            return
        if self._may_write():
            try:
                path = await asyncio.to_thread(resolve_model, rest, context.model_search())
            except ModelChoiceError as error:
                self._say(f"{error}.")
            else:
                self._talk.active.open_model(path)

    async def do_stop(self, _: str) -> None:
        """Stop the answer, or the opening of a model"""
        if not self._talk.active.stop() and not self._talk.active.cancel_load():
            self._say("There is nothing to stop.")

    async def do_pause(self, _: str) -> None:
        """Pause the answer; again to let it go on"""
        session = self._talk.active
        self._say(
            ("(paused)" if session.paused else "(goes on)")
            if session.pause()
            else "There is no answer to pause."
        )

    async def do_regenerate(self, _: str) -> None:
        """Write the last answer again"""
        if self._may_write():
            self._talk.active.regenerate()

    async def do_previous_answer(self, _: str) -> None:
        """Show the alternative before this answer"""
        self._show_sibling(-1)

    async def do_next_answer(self, _: str) -> None:
        """Show the alternative after this answer"""
        self._show_sibling(1)

    def _show_sibling(self, step: int) -> None:
        if self._may_write():
            self._talk.active.show_sibling(step)
            if (last := self._talk.active.conversation.last_answer()) is not None:
                self._talk.show(last)

    async def do_edit_last(self, rest: str) -> None:
        """TEXT: ask the last question in other words"""
        node = self._talk.active.conversation.last_user()
        if node is None or not rest:
            self._say(
                f"/edit_last and the new words. The last question: {node.text}"
                if node
                else "Nothing was asked yet."
            )
        elif self._may_write():
            self._talk.active.edit(node.id, rest)

    async def do_edit(self, _: str) -> None:
        """Write a message in the editor of $EDITOR, and send it"""
        try:
            draft = self._talk.active.writing.draft.expanded
            text = await asyncio.to_thread(edited, draft, editor_command(os.environ))
        except EditorError as error:
            self._say(str(error))
        else:
            if text.strip():
                self._talk.send(text)

    async def do_send(self, _: str) -> None:
        """Send the draft of this chat"""
        writing = self._talk.active.writing
        text = writing.draft.message
        if text.strip():
            writing.keep(replace(writing.draft, text="", chips={}))
            self._talk.send(text)
        else:
            self._say("There is no draft here.")

    async def do_copy_answer(self, _: str) -> None:
        """Copy the last answer to the clipboard"""
        node = self._talk.active.conversation.last_answer()
        if node is None or not node.text:
            self._say("There is no answer to copy yet.")
        else:
            self._say((await asyncio.to_thread(self._context.copy, node.text, self._context.tell)).message)

    async def do_export_chat(self, rest: str) -> None:
        """[md, json or html]: write this chat into a file"""
        from app.exchange.formats import Format, write_export
        from app.exchange.kept import KeptChat

        conversation = self._talk.active.conversation
        chat = await asyncio.to_thread(self._context.history.summary, conversation.id)
        if chat is None or (rest and rest not in set(Format)):
            self._say("There is nothing to export yet." if chat is None else "Name md, json or html.")
            return
        kept, folder = KeptChat(conversation, chat.marks), self._context.locations.exports
        try:
            self._say(
                f"Written to {await asyncio.to_thread(write_export, folder, kept, Format(rest or 'md'))}"
            )
        except OSError as error:
            self._say(f"The chat could not be written ({error}).")

    async def do_tab_settings(self, rest: str) -> None:
        """[NAME VALUE]: this chat's system prompt and sampling, such as temperature 0.2"""
        conversation = self._talk.active.conversation
        name, _, value = rest.partition(" ")
        if name and self._may_write():
            try:
                _set(conversation, name, value.strip())
            except (RequestError, ValueError, TypeError) as error:
                self._say(f"{name}: {error}")
                return
            self._talk.active.settings_changed()
        sampling = ", ".join(f"{n} {getattr(conversation.sampling, n)}" for n in _SAMPLING)
        limit = conversation.max_tokens or ("0" if LIMIT in conversation.chosen else "as recommended")
        self._say(f"system: {conversation.system_prompt or '(nothing)'}. {sampling}, {LIMIT} {limit}.")

    async def do_settings(self, rest: str) -> None:
        """[NAME VALUE]: the settings of the app; a - as the value brings the default back"""
        name, _, value = rest.partition(" ")
        found = [s for s in all_settings(()) if name in (s.name, f"{s.section}.{s.name}", s.section)]
        if name and not found:
            self._say(f"There is no setting {name}; /settings lists all.")
        elif value and len(found) == 1:
            try:
                new = None if value.strip() == "-" else found[0].parsed(value)
            except ValueError as error:
                self._say(f"{name} must be {error}.")
                return
            self._context.preferences.change(found[0].section, found[0].name, new)
            self._say(
                f"{name} is {found[0].written(found[0].value(self._context.settings))}, {found[0].when}."
            )
        else:
            for setting in found or all_settings(()):
                written = setting.written(setting.value(self._context.settings))
                self._say(f"{setting.section}.{setting.name}: {written}. {setting.help}")

    async def do_take_over(self, _: str) -> None:
        """Write here in a chat that another window has open"""
        session = self._talk.active
        if session.read_only:
            await asyncio.to_thread(self._context.history.ask_takeover, session.conversation.id)
        self._say("Asked the other window." if session.read_only else "This chat is written here already.")

    async def do_quit_app(self, _: str) -> None:
        """Leave; chats are saved"""
        self._leave()

    def _may_write(self) -> bool:
        if self._talk.active.read_only:
            self._say("Another window writes this chat. /take_over asks for it.")
        return not self._talk.active.read_only


_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")


def _set(conversation: Conversation, name: str, text: str) -> None:
    """Set one value of a chat; `ValueError` or `RequestError` says what is wrong."""
    if name == "system":
        conversation.system_prompt = text
        return
    if name == LIMIT:
        if (limit := int(text)) < 0:
            raise ValueError("give at least 1, or 0 for no limit")
        conversation.max_tokens = limit or None
        conversation.chosen |= {name}
        return
    if name not in _SAMPLING:
        raise ValueError(f"there are system, {', '.join((*_SAMPLING, LIMIT))}")
    value: Any = int(text) if name in ("top_k", "seed") else float(text)
    conversation.sampling = replace(conversation.sampling, **{name: value})
    conversation.chosen |= {name}
