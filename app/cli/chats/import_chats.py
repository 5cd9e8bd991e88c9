"""`tui-chat import`: chats of a file into the history."""

import argparse
from pathlib import Path

from app.cli.chats.kept_chats import opened_history
from app.cli.common import CommandError, say
from app.exchange.kept import ChatFileError
from app.exchange.merging import Intake
from app.exchange.reading import read_chats

_MOST_SAID = 20
_AT_ONCE = 100
"""Chats that are written together."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="tui-chat's JSON, ChatGPT's export (.zip too) or Open WebUI's"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would come in; change nothing")


def run(args: argparse.Namespace) -> int:
    """Take in every chat that can be read; 1 when one could not."""
    try:
        found = read_chats(args.file)
    except ChatFileError as error:
        raise CommandError(str(error)) from error
    refused = 0
    with opened_history("pretend" if args.dry_run else "create") as history:
        intake = Intake(history, dry_run=args.dry_run)
        for number, entry in enumerate(found, 1):
            if isinstance(entry, ChatFileError):
                refused += 1
                if refused <= _MOST_SAID:
                    say(f"{args.file}: {entry}")
            else:
                intake.take(entry)
            if number % _AT_ONCE == 0 and not history.flush():
                raise CommandError(f"{history.standing[0]} {intake}.")
    if refused > _MOST_SAID:
        say(f"{args.file}: {refused - _MOST_SAID:,} more chats could not be read")
    say(f"{'would come in' if args.dry_run else 'taken in'}: {intake}; {refused:,} refused")
    return 1 if refused else 0
