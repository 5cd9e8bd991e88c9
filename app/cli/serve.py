"""`tui-chat serve`: the engine for other programs, over HTTP."""

import argparse
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from app.cli.common import CommandError, read_settings, say
from app.models.choice import resolve_model
from app.models.found import FoundModel, ModelSearch, find, search_of
from app.models.make import make_engine
from app.models.stores.ollama import weights_of
from app.serve.doors import noted
from app.serve.listening import USUAL_PORT, address_of, listening_socket, missing_package
from app.settings.file import Settings, parse_size
from app.settings.paths import locations

if TYPE_CHECKING:
    from app.serve.program import ServeOptions
    from app.serve.requests.moving import Moving
    from app.serve.requests.on_demand import ModelShelf
    from app.serve.requests.served import Served
    from engine import AnyEngine, Model

_INTERRUPTED = 130
_ON_DEMAND = 2
"""Models beside those that the command names, where no number says more."""


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
    parser.add_argument(
        "--port", type=_port, default=USUAL_PORT, help="port to listen on; 0 takes a free one"
    )
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
    parser.add_argument(
        "--load-on-demand",
        type=_positive,
        nargs="?",
        const=_ON_DEMAND,
        metavar="N",
        help="load other models that `tui-chat models` shows when a request names them, at most "
        f"{_ON_DEMAND} or N at once; the one that was not asked for longest makes room",
    )
    parser.add_argument("--quiet", action="store_true", help="write no row for each request")


def run(args: argparse.Namespace) -> int:
    """Load the models and serve until the program is ended."""
    if problem := missing_package():
        raise CommandError(problem)
    from app.serve.log_row import Row, write_row
    from app.serve.program import make_application, run_server
    from app.serve.requests.on_demand import OnDemand
    from app.serve.requests.served import ServedModels

    options, settings = _options(args), read_settings()
    search = search_of(settings, locations(), args.models_folder)
    paths = [resolve_model(name, search) for name in _names(args.model, settings)]
    # Before the models are loaded: another server may have the port.
    with _listening(options) as listening:
        engine = make_engine(settings.engine)
        try:
            models = _loaded(engine, paths, settings, search, args.alias)
            log: Callable[[Row], None] = _nothing if args.quiet else write_row
            on_demand = None
            if args.load_on_demand is not None:
                shelf = _shelf(engine, search, settings, paths)
                on_demand = OnDemand(shelf, args.load_on_demand)
            served_models = ServedModels(lambda: models, on_demand, _moving(engine))
            application = make_application(served_models, engine.stats, options, log)
            listening.listen()
            say(f"serving {', '.join(served.id for served in models)} at {address_of(listening)}")
            with noted(locations().doors, address_of(listening)):
                interrupted = run_server(application, options, listening)
        finally:
            engine.close()
    return _INTERRUPTED if interrupted else 0


def _options(args: argparse.Namespace) -> "ServeOptions":
    from app.serve.http.limits import HttpLimits, is_loopback
    from app.serve.program import ServeOptions
    from app.serve.requests.desk import MOST_REQUESTS

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
    engine: "AnyEngine", paths: list[Path], settings: Settings, search: ModelSearch, aliases: list[str]
) -> "list[Served]":
    """Every model, the first one with its aliases."""
    from app.serve.requests.naming import served_model

    known = {found.path: found for found in find(search)}
    served: list[Served] = []
    for path in dict.fromkeys(paths):
        model = _load(engine, path)
        served.append(served_model(model, settings.sampling, known.get(path), () if served else aliases))
    return served


def _load(engine: "AnyEngine", path: Path) -> "Model":
    model = engine.load(weights_of(path))
    for warning in (*model.warnings, model.tokenizer.warning, model.template.warning):
        if warning:
            say(f"warning: {warning}")
    return model


def _moving(engine: "AnyEngine") -> "Moving":
    from app.serve.requests.moving import Moving

    return Moving(
        lambda model: engine.stats().can_move(cast("Model", model).id),
        lambda model: _load(engine, model.path),
    )


def _shelf(
    engine: "AnyEngine", search: ModelSearch, settings: Settings, named: Sequence[Path]
) -> "ModelShelf":
    """What the engine loads on demand: all that is found but for what it was told to load."""
    from app.serve.requests.naming import served_model
    from app.serve.requests.on_demand import ModelShelf

    models: dict[str, Model] = {}

    def load(found: FoundModel) -> "Served":
        models[found.title] = model = _load(engine, found.path)
        return served_model(model, settings.sampling, found)

    def answering(served: "Served") -> bool:
        return any(one.model == served.model.name for one in engine.stats().sequences)

    return ModelShelf(
        lambda: [found for found in find(search) if found.path not in named],
        load,
        lambda served: models.pop(served.id).unload(),
        answering,
    )


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
