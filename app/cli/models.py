"""`tui-chat models`: the model files that are found, from their headers alone."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.common import read_settings, say
from app.models.builtin import is_builtin
from app.models.fit.device import memory_of
from app.models.fit.fit_words import fit_text
from app.models.fit.speeds import SpeedStore
from app.models.found import OWN, FoundModel, find, search_of
from app.models.listed.notes import ModelNotes
from app.models.listed.order import Known
from app.models.recommended import recommended
from app.settings.paths import locations
from app.settings.words import count_text, tokens_text
from app.terminal.controls import clean, for_stream

if TYPE_CHECKING:
    from engine import DeviceRules, Fit

_COLUMNS = ("NAME", "FROM", "TYPE", "QUANT", "SIZE", "PARAMETERS", "CONTEXT", "FITS", "FILE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--models-folder", action="append", default=[], metavar="DIR", help="search here too (repeatable)"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list")


def run(args: argparse.Namespace) -> int:
    """List the built-in model, those of all folders and those of other programs."""
    places = locations()
    search = search_of(read_settings(), places, args.models_folder)
    for folder in args.models_folder:
        if not Path(folder).expanduser().is_dir():
            say(f"warning: there is no folder {folder}")
    memory = memory_of(search)
    models = [(found, memory.fit(found.summary) if memory else None) for found in find(search)]
    if args.json:
        known = Known(ModelNotes(places.notes_file).read(), SpeedStore(places.speeds_file).all())
        rules = memory.rules if memory is not None else None
        records = [_as_dict(found, fit, rules, known) for found, fit in models]
        print(for_stream(json.dumps(records, indent=2, ensure_ascii=False), sys.stdout))
        return 0
    rows = [_COLUMNS, *(_row(found, fit) for found, fit in models)]
    if sys.stdout.isatty():
        rows = [tuple(map(clean, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths[:-1], strict=False)), row[-1],
              sep="  ")  # fmt: skip
    return 0


def _as_dict(
    found: FoundModel, fit: "Fit | None", rules: "DeviceRules | None", known: Known
) -> dict[str, object]:
    from engine import serving

    model, path = found.summary, found.path
    sampling = recommended(model.sampling, model.sampling_ignored, found.details)
    speed = known.speeds.get(path)
    return {
        "name": model.name,
        "names": list(found.names),
        "path": str(model.path),
        "store": found.store,
        "builtin": is_builtin(model.path),
        "architecture": model.architecture,
        "quantization": model.quantization,
        "type_bytes": model.type_bytes,
        "size_bytes": model.size_bytes,
        "parameters": model.parameters,
        "context_length": model.context_length,
        "kv_bytes_per_token_f16": model.kv_bytes_per_token_f16,
        "parts": model.parts,
        "license": model.license,
        "tokenizer": model.tokenizer,
        "has_template": model.has_template,
        "sampling": sampling.values,
        "sampling_sources": sampling.sources,
        "sampling_ignored": sampling.ignored,
        "details": found.details,
        "supported": model.supported,
        "problem": model.problem,
        "fit": None if fit is None else asdict(fit) | {"text": fit_text(fit)},
        "kernels": dict(serving(model.footprint, rules)) if model.footprint and rules else {},
        "speed": None if speed is None else asdict(speed),
        "favourite": path in known.notes.favourites,
        "last_used": known.notes.used.get(path),
    }


def _row(found: FoundModel, fit: "Fit | None") -> tuple[str, ...]:
    model = found.summary
    problem = "" if model.supported and not model.problem else f"  {model.problem or 'not supported'}"
    return (
        model.name if found.store == OWN else found.names[0],
        found.origin,
        model.architecture,
        model.quantization,
        f"{model.size_bytes / 1e6:,.0f} MB",
        f"{model.parameters / 1e6:,.0f} M" if model.parameters else "?",
        f"{model.context_length:,}" if model.context_length else "?",
        _fits(fit),
        f"{model.path}{problem}",
    )


def _fits(fit: "Fit | None") -> str:
    """How many chats, in few words."""
    from engine import Verdict

    if fit is None or fit.verdict is Verdict.UNKNOWN:
        return "?" if fit is not None else ""
    if fit.verdict is Verdict.TOO_LARGE:
        return "no"
    length = tokens_text(fit.context)
    some = f"{count_text(fit.chats_that_fit)} of {length}" if fit.chats_that_fit else f"under {length}"
    return some if fit.split is None else f"{some}, {fit.split.short_text}"
