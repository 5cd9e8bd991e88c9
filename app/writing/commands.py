"""Slash commands: every action and every kept prompt by its name, and messages that only look like one."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from app.settings.actions import ACTIONS
from app.settings.fuzzy import fit_score
from app.writing.prompts import KeptPrompt

ACTION_NAMES = frozenset(action.id for action in ACTIONS)
_CALL = re.compile(r"/([\w-]+)(?:\s+(.*))?\s*", re.DOTALL)
_SLASHED = re.compile(r"/+[\w-]+(?:\s|\Z)")
_BEGUN = re.compile(r"/([\w-]*)")
_WRITTEN_ON = re.compile(r"/([\w-]+) +(\S*)")
_LEAST_IN_HELP = 3
"""Fewer letters are in every sentence."""


@dataclass(frozen=True, slots=True)
class Command:
    """What can be asked for with a slash; `prompt` is the kept prompt that it puts in."""

    name: str
    title: str
    help: str
    prompt: KeptPrompt | None = None
    takes: tuple[tuple[str, str], ...] = ()
    """What may stand behind it: examples, and what they mean."""


def all_commands(prompts: Sequence[KeptPrompt]) -> list[Command]:
    """Return the kept prompts and every action of the app."""
    kept = [Command(prompt.name, "Prompt", prompt.help, prompt) for prompt in prompts]
    return kept + [Command(action.id, action.title, action.help, takes=action.takes) for action in ACTIONS]


def called(text: str) -> tuple[str, str] | None:
    """Return the name that a text calls and what stands behind it, or None for a message."""
    found = _CALL.fullmatch(text)
    return (found[1].replace("-", "_"), (found[2] or "").strip()) if found else None


def named(name: str, commands: Sequence[Command]) -> Command | None:
    """Return the command of this name; - and _ are one."""
    return next((command for command in commands if _plain(command.name) == _plain(name)), None)


def begun(before: str) -> str | None:
    """Return the letters of a command that is being written, by the text before the cursor, or None."""
    found = _BEGUN.fullmatch(before)
    return found[1] if found else None


def forms(before: str, commands: Sequence[Command]) -> list[tuple[str, str]]:
    """Return what a command may be written on with, by the text before the cursor: whole texts, meanings.

    Nothing once its first word is written.
    """
    found = _WRITTEN_ON.fullmatch(before)
    command = named(found[1], commands) if found is not None else None
    if found is None or command is None:
        return []
    written = found[2]
    rows = [(form, help) for form, help in command.takes if form.startswith(written)]
    return [(f"/{command.name} {form}", help) for form, help in rows if form.split()[0] != written]


def matching(letters: str, commands: Sequence[Command]) -> list[Command]:
    """Return the commands that some letters fit, the best first."""
    wanted = _plain(letters)
    if not wanted:
        return list(commands)
    scored = [(_score(wanted, command), command) for command in commands]
    # Of names that begin alike the shortest first: it can be written whole.
    scored.sort(key=lambda pair: (-pair[0], len(pair[1].name)))
    return [command for score, command in scored if score > 0]


def as_message(text: str) -> str:
    """Return what is sent of a text: a message that looks like a command is written with // before it."""
    return text[1:] if text.startswith("//") and _SLASHED.match(text) else text


def as_written(message: str) -> str:
    """Return how a message is written so that it is sent as it is."""
    return f"/{message}" if _SLASHED.match(message) else message


def _score(wanted: str, command: Command) -> float:
    by_name = fit_score(wanted, _plain(command.name))
    if by_name or len(wanted) < _LEAST_IN_HELP:
        return 2 * by_name
    return fit_score(wanted, f"{command.title} {command.help}")


def _plain(name: str) -> str:
    return name.casefold().replace("-", "_")
