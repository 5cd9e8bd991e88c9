"""`tui-chat serve`: the engine for other programs, over HTTP."""

import argparse
import os
import socket
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.common import CommandError, read_settings, say
from app.models.choice import resolve_model
from app.models.found import FoundModel, ModelSearch, find, search_of
from app.models.make import make_engine
from app.models.recommended import recommended_for
from app.settings.file import Settings, parse_size
from app.settings.paths import locations

if TYPE_CHECKING:
    from app.serve.program import ServeOptions
    from app.serve.served import Served
    from engine import Engine

_NEEDED = ("starlette", "uvicorn", "prometheus_client")
_INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "-m",
        "--model",
        action="append",
        metavar="MODEL",
        help="path of a .gguf file, a name or its beginning, or builtin (repeatable)",
    )
    parser.add_argument(
        "--models-folder", action="append", default=[], metavar="DIR", help="search here too (repeatable)"
    )
    parser.add_argument(
        "--alias",
        action="append",
        default=[],
        metavar="NAME",
        help="another name for the first model, such as one that a client insists on (repeatable)",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; this computer's alone")
    parser.add_argument("--port", type=_port, default=8080, help="port to listen on; 0 takes a free one")
    parser.add_argument(
        "--api-key-env",
        metavar="NAME",
        help="environment variable with the key that clients must send; needed for other hosts",
    )
    parser.add_argument(
        "--most-requests", type=_positive, metavar="N", help="answers that run or wait before others get 429"
    )
    parser.add_argument(
        "--body-limit", type=_bytes, metavar="SIZE", help="longest request, such as 16MiB, which is usual"
    )
    parser.add_argument("--quiet", action="store_true", help="write no row for each request")


def run(args: argparse.Namespace) -> int:
    """Load the models and serve until the program is ended."""
    for package in _NEEDED:
        if find_spec(package) is None:
            raise CommandError(f"{package} is not installed; run: pip install 'tui-chat[serve]'")
    from app.serve.log_row import Row, write_row
    from app.serve.program import make_application, run_server
    from app.serve.served import ServedModels

    options, settings = _options(args), read_settings()
    search = search_of(settings, locations(), args.models_folder)
    paths = [resolve_model(name, search) for name in _names(args.model, settings)]
    # Before the models are loaded: another server may have the port.
    with _listening(options) as listening:
        engine = make_engine(settings.engine)
        try:
            models = _loaded(engine, paths, settings, search, args.alias)
            log: Callable[[Row], None] = _nothing if args.quiet else write_row
            application = make_application(ServedModels(models), engine.stats, options, log)
            listening.listen()
            say(f"serving {', '.join(served.id for served in models)} at {_address(listening.getsockname())}")
            interrupted = run_server(application, options, listening)
        finally:
            engine.close()
    return _INTERRUPTED if interrupted else 0


def _options(args: argparse.Namespace) -> "ServeOptions":
    from app.serve.desk import MOST_REQUESTS
    from app.serve.http.limits import HttpLimits, is_loopback
    from app.serve.program import ServeOptions

    token = None
    if args.api_key_env is not None:
        token = os.environ.get(args.api_key_env, "").strip()
        if not token:
            raise CommandError(f"--api-key-env: {args.api_key_env} is not set in the environment", code=2)
    elif not is_loopback(args.host):
        raise CommandError(
            f"--host {args.host}: others could reach the server; name the variable that holds a key with "
            "--api-key-env, or leave --host out",
            code=2,
        )
    limits = HttpLimits() if args.body_limit is None else HttpLimits(body_bytes=args.body_limit)
    most = MOST_REQUESTS if args.most_requests is None else args.most_requests
    return ServeOptions(args.host, args.port, token, most, limits)


def _listening(options: "ServeOptions") -> socket.socket:
    from app.serve.program import listening_socket

    try:
        return listening_socket(options.host, options.port)
    except OSError as error:
        reason = error.strerror or error
        raise CommandError(
            f"--host {options.host}, --port {options.port}: cannot be listened on: {reason}"
        ) from error


def _names(given: list[str] | str | None, settings: Settings) -> list[str]:
    if isinstance(given, str):
        return [given]
    return list(given or [settings.models.default])


def _loaded(
    engine: "Engine", paths: list[Path], settings: Settings, search: ModelSearch, aliases: list[str]
) -> "list[Served]":
    """Every model, the first one with its other names; ids differ."""
    from app.serve.served import Served

    known = {found.path: found for found in find(search)}
    served: list[Served] = []
    for path in dict.fromkeys(paths):
        model = engine.load(path)
        for warning in (*model.warnings, model.tokenizer.warning, model.template.warning):
            if warning:
                say(f"warning: {warning}")
        own, others = _called(path, known.get(path), model.name)
        usual = recommended_for(path).applied(settings.sampling.params(), settings.sampling.chosen)
        more = () if served else tuple(aliases)
        served.append(Served(model, own, frozenset(others), usual, more, settings.sampling.token_limit))
    return served


def _called(path: Path, found: FoundModel | None, name: str) -> tuple[str, set[str]]:
    """What a model is called by its server, and what else it may be called: any name that lists show."""
    if found is None:
        return name, {path.name.casefold(), path.stem.casefold()}
    others = {path.name, path.stem, found.summary.name, *found.names, name}
    return found.title, {other.casefold() for other in others}


def _address(name: Any) -> str:
    host, port = name[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _nothing(_row: object) -> None:
    return


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{port} is not between 0 and 65535")
    return port


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


def _bytes(text: str) -> int:
    size = parse_size(text)
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least one byte")
    return size
