"""`tui-chat where`: the folders and files that the app uses."""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from app.models.builtin import builtin_model_path
from app.models.found import search_of
from app.settings.file import load_settings
from app.settings.paths import locations
from app.settings.words import size_text
from app.terminal.controls import for_stream

if TYPE_CHECKING:
    from engine import SavedKV


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.add_argument(
        "--delete-contexts",
        action="store_true",
        help="delete the contexts of chats that are kept on disk; they are read again when they are needed",
    )


def run(args: argparse.Namespace) -> int:
    """Print the locations, or delete the contexts; nothing is created."""
    from engine import SavedKV

    places = locations()
    settings, _ = load_settings(places.settings_file)
    saved = SavedKV(places.kv_folder)
    if args.delete_contexts:
        return _delete(saved)
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
        more = {"contexts_bytes": saved.nbytes, "model_folders": folders}
        record = json.dumps(found | more, indent=2, ensure_ascii=False)
        print(for_stream(record, sys.stdout))
        return 0
    for name, path in found.items():
        size = f" ({size_text(saved.nbytes)})" if name == "contexts" else ""
        print(for_stream(f"{name.replace('_', ' '):<14} {path}{size}", sys.stdout))
    for folder in settings.models.folders:
        print(for_stream(f"{'model folder':<14} {folder}", sys.stdout))
    return 0


def _delete(saved: "SavedKV") -> int:
    freed = saved.nbytes
    try:
        saved.clear()
    except OSError as error:
        print(f"tui-chat: the contexts could not be deleted: {error}", file=sys.stderr)
        return 1
    print(f"{size_text(freed)} of contexts are deleted")
    return 0
