"""`tui-chat export`: chats into files for readers, or into the app's own format, which loses nothing."""

import argparse
import sys
import time
from pathlib import Path

from app.cli.chats.kept_chats import every_chat, named_chat, opened_history
from app.cli.common import CommandError, say
from app.exchange.formats import Format, file_stem, free_path, json_text, text_of
from app.exchange.kept import KeptChat
from app.history.statements import ConversationSummary
from app.history.store import HistoryStore
from app.settings.paths import locations, write_atomically
from app.terminal.controls import for_stream


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("chat", nargs="?", metavar="WORD", help="what stands in the chat's title, or its id")
    parser.add_argument("--all", action="store_true", help="every chat, archived ones too")
    parser.add_argument(
        "--format", choices=[str(form) for form in Format], help="json loses nothing; the others are to read"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE|DIR", help="where to; one chat goes to stdout without it"
    )
    parser.add_argument("--force", action="store_true", help="write over a file that is there")


def run(args: argparse.Namespace) -> int:
    """Write one chat, or all of them."""
    if (args.chat is None) is not args.all:
        raise CommandError("name a chat, or all of them with --all", code=2)
    form = _format(args)
    with opened_history() as history:
        if args.all:
            return _export_all(args, form, history)
        kept = _kept(history, named_chat(history, args.chat))
        if kept is None:
            raise CommandError(f"“{args.chat}” is not there any more")
        text = text_of(kept, form)
    if args.output is None:
        sys.stdout.write(for_stream(text, sys.stdout))
        return 0
    path = free_path(args.output, file_stem(kept), form) if _is_folder(args.output) else args.output
    _write(path, text, args.force)
    say(f"written to {path}")
    return 0


def _format(args: argparse.Namespace) -> Format:
    """The format that is asked for, or that the file's name ends with."""
    if args.format is not None:
        return Format(args.format)
    end = args.output.suffix[1:].lower() if args.output is not None else ""
    return Format(end) if end in set(Format) else Format.JSON if args.all else Format.MARKDOWN


def _export_all(args: argparse.Namespace, form: Format, history: HistoryStore) -> int:
    found = every_chat(history)
    if not found:
        raise CommandError("no chat is kept yet")
    output = args.output or locations().exports
    chats = (kept for kept in (_kept(history, summary) for summary in found) if kept is not None)
    if form is Format.JSON:
        stem = f"tui-chat {time.strftime('%Y-%m-%d')}"
        in_folder = args.output is None or _is_folder(output)
        path = free_path(output, stem, form) if in_folder else output
        _refuse_there(path, args.force)
        listed = list(chats)
        _write(path, json_text(listed), args.force)
        say(f"{_count(len(listed))} written to {path}")
        return 0
    if output.exists() and not output.is_dir():
        raise CommandError(f"{output}: this is no folder; {form} writes a file for each chat", code=2)
    count = 0
    for kept in chats:
        _write(free_path(output, file_stem(kept), form), text_of(kept, form), args.force)
        count += 1
    say(f"{_count(count)} written to {output}")
    return 0


def _kept(history: HistoryStore, summary: ConversationSummary) -> KeptChat | None:
    conversation = history.load(summary.id)
    return KeptChat(conversation, summary.marks) if conversation is not None else None


def _is_folder(path: Path) -> bool:
    return path.is_dir() or (not path.exists() and not path.suffix)


def _write(path: Path, text: str, force: bool) -> None:
    _refuse_there(path, force)
    write_atomically(path, text)


def _refuse_there(path: Path, force: bool) -> None:
    if path.exists() and not force:
        raise CommandError(f"{path}: is there already; name another file, or add --force")


def _count(chats: int) -> str:
    return "1 chat" if chats == 1 else f"{chats:,} chats"
