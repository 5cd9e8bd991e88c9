"""`tui-chat attach`: a second terminal on the engine of a program that serves on this computer."""

import argparse

from app.cli.common import CommandError, say
from app.serve.doors import open_doors
from app.settings.paths import locations


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "address", nargs="?", metavar="URL", help="which one, where several serve; usually the newest"
    )


def address(args: argparse.Namespace) -> str:
    """Return the endpoint to chat with; raises `CommandError` where nobody serves."""
    if args.address is not None:
        return _endpoint(args.address)
    found = open_doors(locations().doors)
    if not found:
        raise CommandError(
            "no tui-chat serves on this computer; start one with tui-chat --serve, or tui-chat serve"
        )
    if len(found) > 1:
        say(f"attached to {found[0]}; also served: {', '.join(found[1:])}")
    return _endpoint(found[0])


def _endpoint(served: str) -> str:
    plain = served.rstrip("/")
    return plain if plain.endswith("/v1") else f"{plain}/v1"
