"""`tui-chat man`: the manual page, made of the parser, the keys, the settings and README's words."""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from app.cli.about.shape import Command, Option, commands_of
from app.settings.actions import ACTIONS, GROUPS, key_label, ways

_README = Path(__file__).parents[3] / "README.md"
_CHAPTERS = ("Writing", "Keeping chats", "Limits")
"""README's, as they stand there."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Nothing is asked for."""
    parser.epilog = "Read it with: tui-chat man | man -l -"


def run(args: argparse.Namespace) -> int:  # noqa: ARG001
    """Print the page."""
    from app.cli.program import COMMANDS, build_parser, version

    parser = build_parser(tuple(COMMANDS))
    sys.stdout.write(page(parser, version()))
    return 0


def page(parser: argparse.ArgumentParser, version: str) -> str:
    """Return the manual page as roff."""
    from app.settings.file import Settings
    from app.settings.reference import commented

    top, *others = commands_of(parser)
    lines = [f'.TH TUI-CHAT 1 "" "tui-chat {version}"', ".SH NAME"]
    lines += [_text(f"tui-chat - {top.help[0].lower()}{top.help[1:].rstrip('.')}")]
    lines += [".SH SYNOPSIS", ".B tui-chat", _text("[OPTIONS] [COMMAND]"), ".SH OPTIONS", *_options(top)]
    lines += [".SH COMMANDS"]
    for command in others:
        lines += [f".SS {_text(command.name)}", _text(command.help), *_options(command)]
    lines += [".SH KEYS", _text("Each action, its first key, and how else it is reached.")]
    for group in GROUPS:
        lines += [f".SS {_text(group)}", *_keys(group)]
    lines += [".SH SETTINGS", *_code(commented(Settings()).splitlines())]
    for title in _CHAPTERS:
        lines += [f".SH {_text(title.upper())}", *_roff(_chapter(title))]
    lines += [".SH EXAMPLES AND EXIT CODES", *_code((parser.epilog or "").splitlines())]
    return "\n".join(lines) + "\n"


def _options(command: Command) -> Iterator[str]:
    for option in command.options:
        yield from (".TP", _named(option), _text(option.help))


def _named(option: Option) -> str:
    names = ", ".join(f"\\fB{_text(name)}\\fR" for name in option.names)
    value = f"\\fI{_text(option.value)}\\fR" if option.value else ""
    return " ".join(part for part in (names, value) if part)


def _keys(group: str) -> Iterator[str]:
    for action in ACTIONS:
        if action.group == group:
            others = ways(action, {})
            yield from (".TP", f"\\fB{_text(key_label(action.keys))}\\fR  {_text(action.title)}")
            yield _text(f"{action.help}. {others}" if action.help else others)


def _chapter(title: str) -> list[str]:
    """A chapter of README, which is the package's description where it is installed."""
    text = _README.read_text(encoding="utf-8") if _README.is_file() else _description()
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return found[1].strip().splitlines() if found else []


def _description() -> str:
    try:
        return str(metadata.metadata("tui-chat").json.get("description", ""))
    except metadata.PackageNotFoundError:
        return ""


def _roff(lines: Iterable[str]) -> Iterator[str]:
    """Markdown of README as roff: paragraphs, lists and code."""
    code: list[str] | None = None
    for line in lines:
        if line.startswith("```"):
            if code is not None:
                yield from _code(code)
            code = [] if code is None else None
        elif code is not None:
            code.append(line)
        elif not line.strip():
            yield ".PP"
        elif line.startswith("- "):
            yield from (".IP \\(bu 2", _marked(line[2:]))
        else:
            yield _marked(line)


def _code(lines: Iterable[str]) -> Iterator[str]:
    yield from (".nf", *(_text(line) for line in lines), ".fi")


def _marked(text: str) -> str:
    """Markdown within a line: links are their words, code and strong words are bold."""
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text)
    parts = re.split(r"`([^`]+)`|\*\*([^*]+)\*\*", text)
    out = [
        _text(part) if index % 3 == 0 else f"\\fB{_text(part)}\\fR"
        for index, part in enumerate(parts)
        if part is not None
    ]
    return "".join(out).removeprefix(" ")


def _text(text: str) -> str:
    """Escape what roff would read as its own."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text
