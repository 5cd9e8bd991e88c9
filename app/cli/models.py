"""`tui-chat models`: the model files that are found, from their headers alone."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.common import read_settings, say
from app.models.builtin import is_builtin
from app.models.choice import available_models, model_folders
from app.settings.paths import locations
from app.terminal.controls import clean, for_stream

if TYPE_CHECKING:
    from engine import ModelSummary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--models-folder", action="append", default=[], metavar="DIR", help="search here too (repeatable)"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list")


def run(args: argparse.Namespace) -> int:
    """List the built-in model and those of all folders."""
    folders = model_folders(read_settings(), locations(), args.models_folder)
    models = available_models(folders)
    for folder in args.models_folder:
        if not Path(folder).expanduser().is_dir():
            say(f"warning: there is no folder {folder}")
    if args.json:
        found = json.dumps([_as_dict(model) for model in models], indent=2, ensure_ascii=False)
        print(for_stream(found, sys.stdout))
        return 0
    rows = [("NAME", "TYPE", "QUANT", "SIZE", "PARAMETERS", "CONTEXT", "FILE"), *map(_row, models)]
    if sys.stdout.isatty():
        rows = [tuple(map(clean, row)) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[6], sep="  "
        )
    return 0


def _as_dict(model: "ModelSummary") -> dict[str, object]:
    return {
        "name": model.name,
        "path": str(model.path),
        "builtin": is_builtin(model.path),
        "architecture": model.architecture,
        "quantization": model.quantization,
        "size_bytes": model.size_bytes,
        "parameters": model.parameters,
        "context_length": model.context_length,
        "kv_bytes_per_token_f16": model.kv_bytes_per_token_f16,
        "parts": model.parts,
        "supported": model.supported,
        "problem": model.problem,
    }


def _row(model: "ModelSummary") -> tuple[str, ...]:
    problem = "" if model.supported and not model.problem else f"  {model.problem or 'not supported'}"
    return (
        model.name,
        model.architecture,
        model.quantization,
        f"{model.size_bytes / 1e6:,.0f} MB",
        f"{model.parameters / 1e6:,.0f} M" if model.parameters else "?",
        f"{model.context_length:,}" if model.context_length else "?",
        f"{model.path}{problem}",
    )
