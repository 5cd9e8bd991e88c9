"""What the list over the composer offers: commands and prompts behind a /, files and chats behind an @."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.screens.context import AppContext
from app.settings.actions import label_of
from app.settings.fuzzy import fit_score
from app.widgets.writing.completions import Completion
from app.widgets.writing.composer import Composer
from app.writing.commands import ACTION_NAMES, Command, all_commands, begun, forms, matching
from app.writing.mentions import CHAT, Entry, entries, mention_before
from app.writing.prompts import read_prompts

_COMMAND_HINT = "Enter runs it · Tab completes · Esc closes"
_FORM_HINT = "Enter or Tab writes it · Esc closes"
_MENTION_HINT = "Enter attaches it · Tab opens a folder · Esc closes"
_CHATS = 200


@dataclass(frozen=True, slots=True)
class ChatMention:
    """A chat that may be put into a message; None for any of them."""

    id: str | None
    title: str = ""


@dataclass(frozen=True, slots=True)
class Form:
    """What a command may be written on with; `text` is an example of the whole."""

    text: str

    @property
    def begun(self) -> str:
        """The part that is put in to be written on: up to the first word behind the command."""
        command, word, *more = self.text.split(" ")
        return f"{command} {word}" + (" " if more else "")


class Completer:
    """Keeps the list up to date; folders, prompts and the history are read on another thread."""

    def __init__(self, composer: Composer, context: AppContext, warn: Callable[[str], None]) -> None:
        self._composer, self._context, self._warn = composer, context, warn
        self._menu = composer.completions
        self.commands: Sequence[Command] = all_commands(())
        self._problems: list[str] = []
        self._start = _here()
        """The folder that relative paths begin at."""
        self._offered = ""
        """The beginning of what was offered last: prompts are read again when a / is typed anew."""
        composer.complete = self.refresh

    def refresh(self) -> None:
        """Offer what fits the text now."""
        composer = self._composer
        if self._menu.made_for == composer.state:
            return
        before = composer.before_cursor
        letters = begun(before)
        written = mention_before(before)
        on = forms(before, self.commands)
        if on:
            self._offered = "/"
            self._show([Completion(text, help, Form(text)) for text, help in on], _FORM_HINT)
        elif letters is None and written is None:
            self._offered = ""
            self._menu.hide()
        elif letters is not None:
            if self._offered != "/":
                composer.run_worker(self._read_prompts(), group="prompts", exit_on_error=False)
            self._offered = "/"
            self._offer_commands(letters)
        else:
            if self._menu.chosen is not None and self._offered != "@":
                self._menu.hide()
            self._offered = "@"
            composer.run_worker(self._offer_mentions(written or ""), group="mentions", exit_on_error=False)

    async def _read_prompts(self) -> None:
        """Read the library anew, and say what is wrong with it once."""
        prompts, problems = await asyncio.to_thread(
            read_prompts, self._context.locations.prompts, ACTION_NAMES
        )
        self.commands = all_commands(prompts)
        for problem in problems:
            if problem not in self._problems:
                self._warn(problem)
        self._problems = problems
        letters = begun(self._composer.before_cursor)
        if letters is not None:
            self._offer_commands(letters)

    def _offer_commands(self, letters: str) -> None:
        self._show([self._row(command) for command in matching(letters, self.commands)], _COMMAND_HINT)

    def _row(self, command: Command) -> Completion:
        if command.prompt is not None:
            return Completion(f"/{command.name}", command.help or "A prompt of yours", command)
        key = label_of(command.name, self._context.settings.keys)
        forms = ", ".join(form for form, _ in command.takes)
        takes = f": {forms}" if forms else ""
        return Completion(f"/{command.name}", f"{command.title} ({key}). {command.help}{takes}", command)

    async def _offer_mentions(self, written: str) -> None:
        state = self._composer.state
        rows = await asyncio.to_thread(self._mentions, written)
        if self._composer.state == state:
            self._show(rows, _MENTION_HINT)

    def _mentions(self, written: str) -> list[Completion]:
        if written.startswith(CHAT):
            return self._chats(written.removeprefix(CHAT))
        rows = [_entry_row(entry) for entry in entries(written, self._start)]
        if CHAT.startswith(written):
            rows.insert(
                0 if written else len(rows), Completion(f"@{CHAT}", "Another chat", ChatMention(None))
            )
        return rows

    def _chats(self, letters: str) -> list[Completion]:
        here = self._composer.chat
        rows = []
        for chat in self._context.history.recent(_CHATS):
            score = fit_score(letters, chat.title) if letters else 1.0
            if chat.id != here and chat.messages and score > 0:
                help = f"{chat.messages} messages"
                rows.append(
                    (score, Completion(f"@{CHAT}{chat.title}", help, ChatMention(chat.id, chat.title)))
                )
        rows.sort(key=lambda row: -row[0])
        return [row for _, row in rows]

    def _show(self, rows: Sequence[Completion], hint: str) -> None:
        composer = self._composer
        above = composer.screen.size.height - composer.region.y
        self._menu.show(rows, composer.state, hint, above)


def _here() -> Path:
    try:
        return Path.cwd()
    except OSError:
        # The folder was deleted meanwhile.
        return Path.home()


def _entry_row(entry: Entry) -> Completion:
    return Completion(f"@{entry.written}", "Folder" if entry.is_folder else "", entry)
