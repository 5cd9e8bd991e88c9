"""What several commands share: settings with warnings on stderr, the model that `-m` means."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from app.models.builtin import model_title
from app.models.choice import resolve_model
from app.models.endpoint_keys import endpoint_model
from app.models.found import search_of
from app.settings.file import EngineSettings, Settings, load_settings, parse_layers
from app.settings.paths import locations
from app.settings.servers.endpoints import given_endpoint
from app.terminal.controls import for_stream


class CommandError(Exception):
    """A command cannot do what was asked; the message is shown as one line. `code`: exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def say(message: str) -> None:
    """Write one line to stderr; a closed stderr is no error."""
    if sys.stderr is None:
        return
    try:
        line = " ".join(message.splitlines())
        print(for_stream(f"tui-chat: {line}", sys.stderr), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return


def read_settings() -> Settings:
    """Load the settings; what is wrong with them goes to stderr."""
    settings, warnings = load_settings(locations().settings_file)
    for warning in warnings:
        say(f"warning: {warning}")
    return settings


def add_model_arguments(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Add `-m` and `--models-folder`."""
    parser.add_argument(
        "-m",
        "--model",
        required=required,
        metavar="MODEL",
        help="path of a .gguf file, a name or its beginning, or builtin",
    )
    parser.add_argument(
        "--models-folder",
        action="append",
        default=[],
        metavar="DIR",
        help="search models here too (repeatable)",
    )


def add_host_layers(parser: argparse.ArgumentParser) -> None:
    """Add `--host-layers`."""
    parser.add_argument(
        "--host-layers",
        metavar="N",
        type=_layers,
        help="layers that the processor computes beside a GPU: auto, never or a number",
    )


def _layers(text: str) -> str | int:
    try:
        return parse_layers(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def engine_settings(args: argparse.Namespace, settings: Settings) -> EngineSettings:
    """Those of the settings, or what `--host-layers` says."""
    if args.host_layers is None:
        return settings.engine
    return replace(settings.engine, host_layers=str(args.host_layers))


def chosen_model(args: argparse.Namespace, settings: Settings) -> Path:
    """Return the model file that the command line, or else the settings, name."""
    path = chosen_chat_model(args, settings)
    if endpoint_model(path) is not None:
        raise CommandError(f"{model_title(path)} runs at an endpoint; name a model file with -m")
    return path


def chosen_chat_model(args: argparse.Namespace, settings: Settings) -> Path:
    """Return the model that the command line, or else the settings, name; it may be an endpoint's."""
    search = search_of(settings, locations(), args.models_folder)
    return resolve_model(args.model or settings.models.default, search)


def with_endpoint(settings: Settings, url: str | None, model: str | None) -> tuple[Settings, str | None]:
    """Return the settings with the endpoint that `--endpoint` names, and what names its model then."""
    if url is None:
        return settings, model
    try:
        endpoint = given_endpoint(url, settings.endpoints)
    except ValueError as error:
        raise CommandError(f"--endpoint must be {error}", code=2) from None
    endpoints = MappingProxyType({**settings.endpoints, endpoint.name: endpoint})
    return replace(settings, endpoints=endpoints), f"{endpoint.name}/{model or ''}"
