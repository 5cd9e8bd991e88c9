"""What the answer of `tui-chat ask` is held to, from its options."""

import argparse
from pathlib import Path

from app.cli.common import CommandError
from app.models.backends.port import ChatModel
from engine import Constraint, ConstraintError, ConstraintKind, RequestError

_MOST_BYTES = 1 << 20


def add_constraints(parser: argparse.ArgumentParser) -> None:
    """Add the options, of which one may be given."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--json-schema", metavar="FILE", help="hold the answer to the JSON schema in a file")
    group.add_argument("--regex", metavar="REGEX", help="hold the answer to a regular expression")
    group.add_argument(
        "--grammar", metavar="FILE", help="hold the answer to the grammar in a file, of Lark or llama.cpp"
    )


def given_constraint(args: argparse.Namespace, model: ChatModel) -> Constraint | None:
    """What the options say, compiled; raises `CommandError` naming the option, and the place in its file."""
    if args.json_schema is not None:
        kind, option, text = ConstraintKind.JSON_SCHEMA, f"--json-schema {args.json_schema}", None
    elif args.grammar is not None:
        kind, option, text = ConstraintKind.GRAMMAR, f"--grammar {args.grammar}", None
    elif args.regex is not None:
        kind, option, text = ConstraintKind.REGEX, "--regex", args.regex
    else:
        return None
    if model.local is None:
        raise CommandError(f"{option}: only models of this computer can be held to it", code=2)
    constraint = Constraint(
        kind, _content(option, args.json_schema or args.grammar) if text is None else text
    )
    try:
        model.local.check_constraint(constraint)
    except ConstraintError as error:
        place = f"{error.place}: " if error.place else ""
        raise CommandError(f"{option}: {place}{error.why}", code=2) from error
    except RequestError as error:
        raise CommandError(f"{option}: {str(error).removeprefix('constraint: ')}") from error
    return constraint


def _content(option: str, name: str) -> str:
    try:
        with Path(name).expanduser().open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise CommandError(f"{option}: {error.strerror or error}", code=2) from error
    if len(content) > _MOST_BYTES:
        raise CommandError(f"{option}: is longer than {_MOST_BYTES >> 20} MiB", code=2)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise CommandError(f"{option}: is no UTF-8 text", code=2) from error
