"""`tui-chat where`: the folders and files that the app uses."""

import argparse
import json
import sys

from app.models.builtin import builtin_model_path
from app.models.found import search_of
from app.settings.file import load_settings
from app.settings.paths import locations
from app.terminal.controls import for_stream


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--json", action="store_true", help="print a JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the locations; nothing is created."""
    places = locations()
    settings, _ = load_settings(places.settings_file)
    found = {
        "config": str(places.config),
        "settings": str(places.settings_file),
        "data": str(places.data),
        "history": str(places.history_file),
        "exports": str(places.exports),
        "models": str(places.models),
        "themes": str(places.themes),
        "prompts": str(places.prompts),
        "logs": str(places.logs),
        "cache": str(places.cache),
        "contexts": str(places.kv_folder),
        "state": str(places.state),
        "catalogue": str(places.catalogue_file),
        "builtin_model": str(builtin_model_path()),
    }
    if args.json:
        folders = [str(folder) for folder in search_of(settings, places).folders]
        record = json.dumps(found | {"model_folders": folders}, indent=2, ensure_ascii=False)
        print(for_stream(record, sys.stdout))
        return 0
    for name, path in found.items():
        print(for_stream(f"{name.replace('_', ' '):<14} {path}", sys.stdout))
    for folder in settings.models.folders:
        print(for_stream(f"{'model folder':<14} {folder}", sys.stdout))
    return 0
