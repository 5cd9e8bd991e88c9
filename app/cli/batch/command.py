"""The command: reads the file, runs what has no result yet, writes results line by line."""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from app.cli.ask import answer_stream, thinking_choice
from app.cli.batch.lines import BadLine, Job, done_ids, read_jobs
from app.cli.batch.worker import Answerer
from app.cli.common import CommandError, add_model_arguments, chosen_model, read_settings, say
from app.models.backends.local import LocalModel
from app.models.make import make_engine
from app.models.stores.ollama import weights_of
from app.terminal.controls import for_stream

_AT_ONCE_CPU, _AT_ONCE_GPU, _MOST_AT_ONCE = 8, 64, 1024
_TOLD_EVERY = 10.0
"""Seconds between two lines of progress where stderr is no terminal."""
_FORMAT = """\
each line of FILE is a JSON object, in one of two forms:
  {"id": "a", "prompt": "…", "temperature": 0, "max_tokens": 200}
  {"custom_id": "a", "body": {"messages": [{"role": "user", "content": "…"}]}}
messages may stand in the first form too; temperature, top_k, top_p, min_p, the penalties, seed,
max_tokens, stop and thinking may stand in both. A line without id has "line N" as its id.

results come line by line as they are ready, in any order: id, text, reasoning, finish_reason,
prompt_tokens, completion_tokens, error; for lines with custom_id in OpenAI's form. Run again with
the same -o, ids that have a result without an error are left out. Bad lines are named and left out,
and the exit code is then 1; with --strict nothing is run if there are any.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _FORMAT
    parser.add_argument("file", metavar="FILE", help="a file of lines of JSON; - for stdin")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="OUT", help="add results to this file; else they go to stdout"
    )
    add_model_arguments(parser)
    parser.add_argument("--think", metavar="CHOICE", type=thinking_choice, help="as ask --think")
    parser.add_argument(
        "--at-once",
        type=int,
        metavar="N",
        help=f"most prompts at a time, as far as context memory allows (default {_AT_ONCE_CPU} on a CPU, "
        f"{_AT_ONCE_GPU} on a GPU)",
    )
    parser.add_argument("--strict", action="store_true", help="run nothing if a line is bad")


def run(args: argparse.Namespace) -> int:
    """Answer every line that has no result yet."""
    if args.at_once is not None and not 1 <= args.at_once <= _MOST_AT_ONCE:
        raise CommandError(f"--at-once: {args.at_once} is not between 1 and {_MOST_AT_ONCE}", code=2)
    jobs, bad = read_jobs(_text(args.file))
    _tell_bad(bad, args)
    with answer_stream() as stdout, _opened(args.output, stdout) as out:
        done = done_ids(args.output) if args.output is not None else set()
        left = [job for job in jobs if job.id not in done]
        if len(left) < len(jobs):
            say(f"{len(jobs) - len(left):,} of {len(jobs):,} have results already")
        failed = _run_jobs(args, left, out) if left else 0
    return 1 if bad or failed else 0


def _text(file: str) -> str:
    data = sys.stdin.buffer.read() if file == "-" else Path(file).expanduser().read_bytes()
    return data.decode("utf-8-sig", "replace")


def _tell_bad(bad: Sequence[BadLine], args: argparse.Namespace) -> None:
    for line in bad:
        say(f"{args.file}: line {line.number}: {line.reason}")
    if bad and args.strict:
        raise CommandError(f"{args.file}: nothing was run, {len(bad)} bad line{'s' if len(bad) > 1 else ''}")


@contextmanager
def _opened(path: Path | None, stdout: TextIO) -> Iterator[TextIO]:
    if path is None:
        yield stdout
        return
    with path.open("a", encoding="utf-8", errors="replace") as file:
        yield file


def _run_jobs(args: argparse.Namespace, jobs: Sequence[Job], out: TextIO) -> int:
    """Run the jobs; return how many failed."""
    settings = read_settings()
    path = chosen_model(args, settings)
    engine = make_engine(settings.engine)
    try:
        model = LocalModel(engine.load(weights_of(path)), path)
        for warning in model.warnings:
            say(f"warning: {warning}")
        watched = settings.general.stop_repeats
        answerer = Answerer(model, settings.sampling, args.think, watched=watched)
        at_once = args.at_once or (_AT_ONCE_CPU if engine.device == "cpu" else _AT_ONCE_GPU)
        return _collect(answerer, jobs, at_once, out)
    finally:
        engine.close()


def _collect(answerer: Answerer, jobs: Sequence[Job], at_once: int, out: TextIO) -> int:
    progress = _Progress(len(jobs))
    waiting = iter(jobs)
    running: set[Future[dict[str, Any] | None]] = set()
    with ThreadPoolExecutor(at_once, "batch") as pool:
        try:
            while True:
                while len(running) < at_once and (job := next(waiting, None)) is not None:
                    running.add(pool.submit(answerer.answer, job))
                if not running:
                    break
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    _write(future.result(), out, progress)
        except BaseException:
            answerer.stop()
            for future in running:
                if (record := future.result()) is not None:
                    _write(record, out, progress)
            progress.interrupted()
            raise
    progress.end()
    return progress.failed


def _write(record: dict[str, Any] | None, out: TextIO, progress: "_Progress") -> None:
    if record is not None:
        out.write(for_stream(json.dumps(record, ensure_ascii=False), out) + "\n")
        out.flush()
        progress.add(record)


class _Progress:
    """Says on stderr how far it is: one line that changes on a terminal, else a line now and then."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = self._tokens = self.failed = 0
        self._started = self._told = time.monotonic()
        self._live = sys.stderr is not None and sys.stderr.isatty()

    def add(self, record: dict[str, Any]) -> None:
        """Count a result."""
        self._done += 1
        self.failed += bool(record["error"])
        response = record.get("response")
        counted = response["body"]["usage"] if response else record
        self._tokens += counted.get("completion_tokens", 0)
        now = time.monotonic()
        if self._live:
            print(f"\r{self._words}\x1b[K", end="", file=sys.stderr, flush=True)
        elif now - self._told >= _TOLD_EVERY:
            self._told = now
            say(self._words)

    @property
    def _words(self) -> str:
        seconds = max(1e-3, time.monotonic() - self._started)
        failed = f", {self.failed:,} failed" if self.failed else ""
        return f"{self._done:,} of {self._total:,}{failed}, {self._tokens / seconds:,.0f} tok/s"

    def end(self) -> None:
        """Say what has come of it."""
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr)
        say(self._words)

    def interrupted(self) -> None:
        """Say how it goes on."""
        self.end()
        say("interrupted: the same command goes on with the rest, where -o names a file")
