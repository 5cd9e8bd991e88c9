"""`tui-chat architectures`: the types of models that run, and what is missing for the others."""

import argparse
import json

from engine import architectures


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--json", action="store_true", help="print a JSON list")


def run(args: argparse.Namespace) -> int:
    """List every value of `general.architecture` that is known."""
    known = architectures()
    if args.json:
        records = [{"name": one.name, "runs": one.runs, "missing": one.missing} for one in known]
        print(json.dumps(records, indent=2))
        return 0
    width = max(len(one.name) for one in known)
    print(f"{'ARCHITECTURE'.ljust(width)}  RUNS  MISSING")
    for one in known:
        print(f"{one.name.ljust(width)}  {'yes' if one.runs else 'no':4}  {one.missing or ''}".rstrip())
    return 0
