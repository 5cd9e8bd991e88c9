"""`tui-chat ask`: one question, one answer. Only the answer goes to stdout."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from app.chat.reasoning import Part, Pieces
from app.cli.ask_chat import Talk, asked_in
from app.cli.ask_constraint import add_constraints, given_constraint
from app.cli.ask_record import ask_record
from app.cli.ask_tools import AskedTools, add_tools, asked_tools
from app.cli.common import (
    CommandError,
    add_host_layers,
    add_model_arguments,
    engine_settings,
    read_settings,
    say,
    with_endpoint,
)
from app.models.backends.local import LocalModel
from app.models.backends.port import Asked, ChatModel, ChatRequest
from app.models.builtin import is_builtin
from app.models.endpoint_keys import endpoint_model
from app.models.fit.speeds import SpeedStore, reading_speed
from app.models.found import search_of
from app.models.listed.notes import ModelNotes
from app.models.make import make_engine
from app.models.mention import is_due, remember
from app.models.port import EnginePort
from app.models.stores.ollama import weights_of
from app.settings.file import Settings
from app.settings.paths import locations
from app.settings.servers.endpoints import ENDPOINT_HELP
from app.terminal.controls import for_stream
from app.tools.offered import NO_TOOLS, Offered
from engine import Finished, FinishReason, RequestError, SamplingParams, Thinking

if TYPE_CHECKING:
    from app.chat.answers.running import RunningAnswer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("prompt", nargs="?", help="the question; text from a pipe is put behind it")
    add_model_arguments(parser)
    parser.add_argument(
        "-c",
        "--continue",
        dest="goes_on",
        action="store_true",
        help="go on with the last chat, and keep it so",
    )
    parser.add_argument("--chat", metavar="WORD", help="go on with the chat that has this in its title")
    parser.add_argument("-s", "--system", metavar="S", help="system prompt")
    parser.add_argument("-t", "--temperature", type=float, metavar="T", help="0 is greedy")
    parser.add_argument("--seed", type=int, metavar="N", help="same seed, same answer")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="most tokens of the answer")
    parser.add_argument("--endpoint", metavar="URL", help=ENDPOINT_HELP)
    add_host_layers(parser)
    parser.add_argument(
        "--think",
        metavar="CHOICE",
        type=thinking_choice,
        help="auto, on, off, low, medium, high or a budget in tokens, as far as the model's chat template "
        "has words for it",
    )
    add_constraints(parser)
    add_tools(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object with counts and speed")


def run(args: argparse.Namespace) -> int:
    """Answer one prompt from the command line and a pipe."""
    prompt = _prompt(args.prompt)
    settings, args.model = with_endpoint(read_settings(), args.endpoint, args.model)
    given = _given_sampling(args)
    with (
        asked_in(args, settings) as talk,
        asked_tools(args, settings, talk) as tools,
        answer_stream() as out,
    ):
        path = talk.model_path(args, settings)
        limit = _limit(args, talk.chat.max_tokens)
        offered = tools.offered if tools is not None else NO_TOOLS
        with _opened(path, args, settings) as (model, engine):
            constraint = given_constraint(args, model)

            def begin(question: str | None) -> "RunningAnswer":
                request = _request(args, talk, model, question, given, limit)
                asked = model.chat(replace(request, constraint=constraint, tools=offered.definitions))
                if question is not None:
                    _say_unusual(model, asked, offered)
                watched = settings.general.stop_repeats
                return talk.ask(question, model, asked, offered, watched=watched)

            finished = _turn(args, model, prompt, begin, talk, tools, out)
            if engine is not None:
                _note(path, engine.stats().device_of(weights_of(path)), finished)
    _mention_models(path, args, settings)
    return 0


@contextmanager
def _opened(
    path: Path, args: argparse.Namespace, settings: Settings
) -> Iterator[tuple[ChatModel, EnginePort | None]]:
    """Open a model for as long as it takes, and the engine that it is of; None: an endpoint's."""
    if endpoint_model(path) is not None:
        from app.endpoints.service import Endpoints

        endpoints = Endpoints(settings.endpoints)
        try:
            yield endpoints.opened(path), None
        finally:
            endpoints.close()
        return
    engine = make_engine(engine_settings(args, settings))
    try:
        yield LocalModel(engine.load(weights_of(path)), path), engine
    finally:
        engine.close()


def _note(path: Path, device: str, finished: Finished) -> None:
    """Remember how fast the answer was, and that the model was used."""
    ModelNotes(locations().notes_file).note_use(path)
    speeds = SpeedStore(locations().speeds_file)
    speeds.note(path, device, finished.tok_s, finished.completion_tokens, reading_speed(finished))


def _mention_models(path: Path, args: argparse.Namespace, settings: Settings) -> None:
    """Say once, and never again, where better models come from, while the built-in one is the only one."""
    mentioned = locations().state / "models-mentioned"
    if not is_builtin(path):
        return
    if is_due(mentioned, search_of(settings, locations(), args.models_folder)) and remember(mentioned):
        say("this was the small demo model; tui-chat pull --list shows real ones that fit this computer")


def _prompt(given: str | None) -> str:
    piped = ""
    if sys.stdin is not None and not sys.stdin.isatty() and given != "":
        piped = sys.stdin.buffer.read().decode("utf-8", "replace").strip("\n")
    parts = [part for part in ("" if given == "-" else given, piped) if part]
    if not parts:
        raise CommandError('nothing to ask: write tui-chat ask "a question" or pipe text in', code=2)
    return "\n\n".join(parts)


def _given_sampling(args: argparse.Namespace) -> dict[str, Any]:
    """What the command line says, before which a model's recommendation and the settings give way."""
    given = {"temperature": args.temperature, "seed": args.seed}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        SamplingParams(**given)
    except RequestError as error:
        raise CommandError(f"--{error}", code=2) from error
    return given


def thinking_choice(text: str) -> Thinking:
    """Read `--think`; argparse names the option when it is wrong."""
    try:
        return Thinking.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be {error}") from error


def _limit(args: argparse.Namespace, usual: int | None) -> int | None:
    """The most tokens of the answer, None for the context's end."""
    if args.max_tokens is None:
        return usual
    if args.max_tokens < 1:
        raise CommandError(f"--max-tokens: {args.max_tokens} is not at least 1", code=2)
    return int(args.max_tokens)


def _request(
    args: argparse.Namespace,
    talk: Talk,
    model: ChatModel,
    prompt: str | None,
    given: dict[str, Any],
    limit: int | None,
) -> ChatRequest:
    """The question, if there is a new one, behind what the chat holds.

    given: sampling that the command line says.
    """
    from app.chat.prompt import prompt_messages

    chat = talk.chat
    system = args.system if args.system is not None else chat.system_prompt
    messages, kept = prompt_messages(system, chat.path(), prompt, str(model.path))
    return ChatRequest(
        *(messages, kept, replace(chat.sampling, **given), limit),
        chosen=chat.chosen | given.keys(),
        thinking=args.think or chat.thinking,
        label="ask",
        in_chat=talk.kept,
    )


def _say_unusual(model: ChatModel, asked: Asked, offered: Offered) -> None:
    """Say what is unusual about the model and the question."""
    who = f"the {'chat template' if model.local is not None else 'endpoint'} of {model.name}"
    lacks = [f"{who} {asked.lacks}"] if asked.lacks is not None else []
    if offered and not asked.knows_tools:
        lacks.append(f"{who} takes no tools: it answers without them")
    for warning in (*model.warnings, asked.prompt.warning, *lacks):
        if warning:
            say(f"warning: {warning}")


def _turn(
    args: argparse.Namespace,
    model: ChatModel,
    prompt: str,
    begin: "Callable[[str | None], RunningAnswer]",
    talk: Talk,
    tools: AskedTools | None,
    out: TextIO,
) -> Finished:
    """Answer a question, with the steps that tools run in between; return how the last answer ended."""
    from app.chat.tool_use.use import MOST_STEPS

    running = begin(prompt)
    for step in range(MOST_STEPS + 1):
        finished = _stream(args, running, talk, out)
        if (
            tools is None
            or not talk.answer.calls
            or finished.reason is not FinishReason.STOP
            or running.repeats
        ):
            break
        if step == MOST_STEPS:
            tools.refuse(talk.answer, MOST_STEPS)
            break
        tools.run(talk.answer)
        running = begin(None)
    _end(args, model, running, talk, finished, out)
    return finished


def _stream(args: argparse.Namespace, running: "RunningAnswer", talk: Talk, out: TextIO) -> Finished:
    """Stream one answer to `out` and into the chat; return how it ended."""

    def write(pieces: Pieces) -> None:
        for part, text in pieces:
            if part is Part.ANSWER and not args.json:
                out.write(for_stream(text, out))
                out.flush()

    from app.chat.answers.reading import read_answer

    reading = read_answer(running)
    finished: Finished | None = None
    try:
        while finished is None:
            try:
                write(next(reading))
                talk.grown()
            except StopIteration as end:
                finished = end.value
        write(talk.end(running, finished))
    except BaseException:
        running.generation.cancel()
        talk.break_off()
        raise
    answer = talk.answer
    if not args.json and not answer.text.endswith("\n") and (answer.text or not answer.calls):
        out.write("\n")
    out.flush()
    return finished


def _end(
    args: argparse.Namespace,
    model: ChatModel,
    running: "RunningAnswer",
    talk: Talk,
    finished: Finished,
    out: TextIO,
) -> None:
    """Write the record, where one is wanted, and say how the answer ended."""
    if args.json:
        record = ask_record(model, talk.steps, finished, repeats=running.repeats)
        out.write(for_stream(json.dumps(record, ensure_ascii=False), out) + "\n")
        out.flush()
    if finished.reason is FinishReason.ERROR:
        raise CommandError(finished.error or "the answer ended with an error")
    if running.repeats:
        say("the answer repeated itself and was ended; stop_repeats = false in the settings lets such go on")
    elif not talk.answer.text and talk.answer.reasoning:
        say("the answer ended inside its reasoning; allow more with --max-tokens")


@contextmanager
def answer_stream() -> Iterator[TextIO]:
    """Give the real stdout to the answer alone: what libraries print to it goes to stderr."""
    sys.stdout.flush()
    try:
        descriptor = sys.stdout.fileno()
        private = os.dup(descriptor)
    except (OSError, ValueError):
        yield sys.stdout
        return
    elsewhere = os.dup(sys.stderr.fileno()) if sys.stderr else os.open(os.devnull, os.O_WRONLY)
    os.dup2(elsewhere, descriptor)
    os.close(elsewhere)
    stream = os.fdopen(os.dup(private), "w", encoding="utf-8", errors="replace")
    try:
        yield stream
    finally:
        sys.stdout.flush()
        with suppress(OSError):
            stream.close()
        os.dup2(private, descriptor)
        os.close(private)
