"""The command line. Imports neither torch, textual nor numpy: `--help` answers at once."""

import argparse
import gc
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import socket

PROGRAM = "tui-chat"
_USUAL_PORT = 8080
OK, ERROR, USAGE, INTERRUPTED = 0, 1, 2, 130
COMMANDS = {
    "ask": "one question, one answer, for scripts and pipes",
    "batch": "answer every prompt of a file, for hours if need be",
    "models": "list the model files that are found",
    "architectures": "list the types of models that run, and what others lack",
    "pull": "fetch a model",
    "serve": "answer other programs over HTTP, as OpenAI's and Anthropic's servers do",
    "attach": "open the app on the engine of a tui-chat that serves on this computer",
    "export": "write chats into files",
    "import": "take chats of a file into the history",
    "tokenize": "turn text from stdin into token ids",
    "bench": "measure the speed of a model on this computer",
    "where": "show the folders and files that are used",
    "completions": "print what a shell completes",
    "man": "print the manual page",
}
_MODULES = {
    "batch": "batch.command",
    "export": "chats.export_chats",
    "import": "chats.import_chats",
    "completions": "about.completions",
    "man": "about.man",
}
"""Where a command is whose name is not its module's."""
_EPILOG = """\
examples:
  tui-chat                                  open the app with the built-in demo model
  tui-chat --model ~/models/qwen3-4b.gguf   open it with another model
  tui-chat pull --list                      show models to fetch, and which fit this computer
  tui-chat --plain                          chat line by line, without a screen
  cat notes.txt | tui-chat ask "Sum this up in one sentence."

exit codes:
  0    all went well
  1    an error; one line on stderr says which
  2    wrong usage, or the app was started without a terminal
  130  interrupted with Ctrl+C
"""


class _Parser(argparse.ArgumentParser):
    """Names an option that it does not know, before what follows it is taken for something else."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does; an unknown option is wrong usage."""
        value_follows = False
        for text in sys.argv[1:] if args is None else args:
            plain = not text.startswith("-")
            if text == "--" or (plain and self._subparsers is not None and not value_follows):
                break
            value_follows = not plain and self._takes_value(text)
        return super().parse_known_args(args, namespace)

    def _takes_value(self, text: str) -> bool:
        """Whether the word after this option is its value; an error for an unknown option."""
        if text == "-" or text[1] in ".0123456789":
            return False
        known = self._option_string_actions
        name, _, joined = text.partition("=") if text.startswith("--") else (text[:2], "", text[2:])
        fitting = [option for option in known if option.startswith(name)] if name not in known else [name]
        if not fitting:
            if " " in text:
                return False
            from difflib import get_close_matches

            near = get_close_matches(text.partition("=")[0], known, n=1)
            near = near or [option for option in known if option.startswith(f"-{name}")]
            self.error(f"there is no option {name}" + (f"; did you mean {near[0]}?" if near else ""))
        return known[fitting[0]].nargs is None and not joined


class _Version(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, **_: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, help="show the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(f"{PROGRAM} {version()}")
        parser.exit(OK)


def version() -> str:
    """Return the installed version."""
    from importlib import metadata

    try:
        return metadata.version(PROGRAM)
    except metadata.PackageNotFoundError:
        return "unknown (not installed)"


def _size(text: str) -> str:
    """The text of a size; argparse names the option when it is none."""
    from app.settings.file import parse_size

    parse_size(text)
    return text


def _layers(text: str) -> str:
    """The text of a number of layers; argparse names the option when it is none."""
    from app.settings.file import parse_layers

    try:
        parse_layers(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def build_parser(argv: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Build the parser; only the commands that `argv` names are imported for their options."""
    from app.settings.servers.endpoints import ENDPOINT_HELP

    parser = _Parser(
        prog=PROGRAM,
        description="Chat with local models in a terminal; every tab answers at the same time.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model", dest="chat_model", metavar="MODEL", help="a .gguf file's path, a name, or ENDPOINT/MODEL"
    )
    parser.add_argument("--endpoint", dest="chat_endpoint", metavar="URL", help=ENDPOINT_HELP)
    parser.add_argument(
        "--models-folder",
        dest="chat_folders",
        action="append",
        default=[],
        metavar="DIR",
        help="search models here too (repeatable)",
    )
    parser.add_argument(
        "--chat",
        dest="named_chat",
        metavar="WORD",
        help="open the chat with this in its title, or with this id",
    )
    parser.add_argument(
        "--plain", action="store_true", help="line by line, for screen readers, dumb terminals and logs"
    )
    parser.add_argument("--theme", metavar="NAME", help="theme for this time")
    parser.add_argument(
        "--vram-limit", dest="chat_vram", metavar="SIZE", type=_size, help="most memory of a GPU, e.g. 12GiB"
    )
    parser.add_argument(
        "--serve",
        dest="door",
        nargs="?",
        const=_USUAL_PORT,
        type=int,
        metavar="PORT",
        help=f"also answer other programs at this port of this computer (usually {_USUAL_PORT})",
    )
    parser.add_argument(
        "--host-layers",
        dest="chat_host_layers",
        metavar="N",
        type=_layers,
        help="layers that the processor computes beside a GPU: auto, never or a number",
    )
    parser.add_argument("--version", action=_Version)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, text in COMMANDS.items():
        sub = commands.add_parser(name, help=text, description=text.capitalize() + ".")
        if name in argv:
            _module(name).add_arguments(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code. Errors are one line on stderr, no traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        args = build_parser(arguments).parse_args(arguments)
        code = _run(args)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return OK
    except Exception as error:
        return _report(error)


def program() -> NoReturn:
    """The program: `main`, and then out of the process at once.

    Threads may still compile kernels, and no compiler can be stopped. Python would wait for some of them,
    and end others in the midst of native code, which aborts the process with a message on the screen.
    """
    _fill_descriptors()
    code = main()
    if threading.active_count() > 1:
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


def _fill_descriptors() -> None:
    """Keep files that are opened from getting the number of a closed stdin, stdout or stderr.

    What native code prints would be written into them.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _run(args: argparse.Namespace) -> int:
    if args.command is None:
        return _chat(args)
    if args.command == "attach":
        args.chat_endpoint = _module("attach").address(args)
        return _chat(args)
    if getattr(args, "model", "") is None:
        args.model = args.chat_model
    if getattr(args, "endpoint", "") is None:
        args.endpoint = args.chat_endpoint
    if hasattr(args, "models_folder"):
        args.models_folder = args.chat_folders + args.models_folder
    from app.cli.common import CommandError
    from app.settings.paths import locations
    from app.terminal.log_file import logging_to

    if sys.stdout is None:
        raise CommandError("stdout is closed: there is nowhere to write to")
    with logging_to(locations().log_file):
        return int(_module(args.command).run(args))


def _module(command: str) -> Any:
    return import_module(f"app.cli.{_MODULES.get(command, command)}")


def _chat(args: argparse.Namespace) -> int:
    from app.cli.common import say

    if not args.plain and not (_is_terminal(sys.stdin) and _is_terminal(sys.stdout)):
        say(
            f"there is no terminal here; run it in one, or use {PROGRAM} ask or {PROGRAM} --plain in scripts "
            "and pipes"
        )
        return USAGE
    return _start_app(args)


def _start_app(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from app.cli.common import with_endpoint
    from app.models.choice import resolve_model
    from app.models.found import search_of
    from app.settings.file import load_settings
    from app.settings.paths import locations

    places = locations()
    settings, warnings = load_settings(places.settings_file)
    if args.theme:
        settings = replace(settings, general=replace(settings.general, theme=args.theme))
    if args.chat_vram:
        settings = replace(settings, engine=replace(settings.engine, vram_limit=args.chat_vram))
    if args.chat_host_layers:
        settings = replace(settings, engine=replace(settings.engine, host_layers=args.chat_host_layers))
    settings, name = with_endpoint(settings, args.chat_endpoint, args.chat_model)
    search = search_of(settings, places, args.chat_folders)
    model = resolve_model(name, search) if name else None
    chat = _chat_id(args.named_chat) if args.named_chat is not None else None
    if args.plain and args.door is not None:
        from app.cli.common import CommandError

        raise CommandError("--serve: not with --plain; tui-chat serve answers other programs", code=2)
    if args.plain:
        from app.plain.program import run_plain

        return run_plain(settings, model, list(search.folders), warnings, chat)
    door = None if args.door is None else _door(args.door)
    # Modules are not garbage: looking for some among them would take a tenth of the way to a first frame.
    gc.disable()
    try:
        from app.window.app import run_app

        gc.freeze()
        folders = list(search.folders)
        return int(
            run_app(settings, model=model, folders=folders, warnings=warnings, chat=chat, listening=door)
        )
    finally:
        gc.enable()


def _door(port: int) -> "socket.socket":
    """Where other programs are served; a port that cannot be had is told before the screen is taken."""
    from app.cli.common import CommandError
    from app.serve.listening import listening_socket, missing_package

    if problem := missing_package():
        raise CommandError(problem)
    try:
        return listening_socket("127.0.0.1", port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CommandError(f"--serve {port}: cannot be listened on: {reason}") from error


def _chat_id(word: str) -> str:
    from app.cli.chats.kept_chats import named_chat, opened_history

    with opened_history() as history:
        return named_chat(history, word).id


def _is_terminal(stream: Any) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def _report(error: Exception) -> int:
    """Say an expected error in one line; log an unexpected one and name the log."""
    from app.cli.common import CommandError, say
    from app.models.choice import ModelChoiceError
    from app.settings.file import SettingsError
    from engine import EngineError

    if isinstance(error, CommandError):
        say(str(error))
        return error.code
    if isinstance(error, EngineError | ModelChoiceError | SettingsError):
        say(str(error))
    elif isinstance(error, OSError):
        say(_os_error(error))
    else:
        say(f"unexpected {type(error).__name__}: {_one_line(error)}{_logged(error)}")
    return ERROR


def _os_error(error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or "no message"


def _logged(error: Exception) -> str:
    """Append the traceback to the log; return where, as the end of a sentence."""
    import time
    import traceback

    from app.settings.paths import locations
    from app.terminal.log_file import open_log

    path = locations().log_file
    try:
        with os.fdopen(open_log(path), "a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {PROGRAM} {version()} {sys.argv[1:]}\n")
            log.write("".join(traceback.format_exception(error)) + "\n")
    except OSError:
        return "; it could not be logged"
    return f"; details are in {path}"


def _silence_stdout() -> None:
    """Keep the interpreter from failing once more when it flushes stdout at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        return
