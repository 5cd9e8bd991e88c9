"""`tui-chat where`: the folders and files that the app uses."""

import argparse
import json

from app.models.builtin import builtin_model_path
from app.models.choice import model_folders
from app.settings.file import load_settings
from app.settings.paths import locations


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
        "models": str(places.models),
        "themes": str(places.themes),
        "logs": str(places.logs),
        "cache": str(places.cache),
        "builtin_model": str(builtin_model_path()),
    }
    if args.json:
        folders = [str(folder) for folder in model_folders(settings, places)]
        print(json.dumps(found | {"model_folders": folders}, indent=2, ensure_ascii=False))
        return 0
    for name, path in found.items():
        print(f"{name.replace('_', ' '):<14} {path}")
    for folder in settings.models.folders:
        print(f"{'model folder':<14} {folder}")
    return 0
