"""`tui-chat tokenize`: text from stdin to token ids, with the tokenizer of a model file alone."""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from app.cli.common import CommandError, add_model_arguments, chosen_model, read_settings
from app.terminal.controls import for_stream

if TYPE_CHECKING:
    from engine import Tokenizer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_model_arguments(parser, required=True)
    parser.add_argument(
        "--special",
        action="store_true",
        help="read control tokens such as <|im_end|> as such, and add what the model wants at the ends",
    )
    parser.add_argument("--json", action="store_true", help='print {"ids": [...]}')


def run(args: argparse.Namespace) -> int:
    """Print the ids of the text on stdin, its bytes as they are."""
    path = chosen_model(args, read_settings())
    text = _read_text()
    from engine import Tokenizer

    tokenizer = Tokenizer.from_file(path)
    ids = tokenizer.encode(text, special=args.special)
    if args.special:
        ids = _with_ends(ids, tokenizer)
    if args.json:
        print(json.dumps({"ids": ids}))
        return 0
    for token_id in ids:
        text = json.dumps(tokenizer.token_text(token_id), ensure_ascii=False)
        print(for_stream(f"{token_id:>7}  {text}", sys.stdout))
    return 0


def _with_ends(ids: list[int], tokenizer: "Tokenizer") -> list[int]:
    """Add the begin and end tokens that the model's file asks for, unless they are there."""
    bos, eos = tokenizer.bos_id, tokenizer.eos_id
    if tokenizer.add_bos and bos is not None and ids[:1] != [bos]:
        ids = [bos, *ids]
    if tokenizer.add_eos and eos is not None and ids[-1:] != [eos]:
        ids = [*ids, eos]
    return ids


def _read_text() -> str:
    if sys.stdin is None:
        return ""
    if sys.stdin.isatty():
        print("tui-chat: reading text from the terminal; Ctrl+D ends it", file=sys.stderr)
    raw = sys.stdin.buffer.read()
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CommandError(f"stdin: byte {error.start} is not UTF-8; convert the text first") from error
