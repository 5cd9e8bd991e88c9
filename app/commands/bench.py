"""`tui-chat bench`: how fast a model runs on this computer, and how long running tabs wait."""

import argparse
import json
import platform
from importlib import metadata
from typing import TYPE_CHECKING

from app.bench.workload import Workload, not_negative, positive, prompts, sizes
from app.commands.common import CommandError, add_model_arguments, chosen_model, read_settings, say
from app.engine_options import make_engine

if TYPE_CHECKING:
    from app.bench.measure import Bench, Figures
    from engine.engine import Engine, Model

_DEFAULT = Workload()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_model_arguments(parser)
    rows = ",".join(map(str, _DEFAULT.rows))
    lengths = ",".join(map(str, _DEFAULT.prefill))
    add = parser.add_argument
    add("--rows", type=sizes, default=_DEFAULT.rows, metavar=rows, help="sequences decoded at once, or none")
    add("--depth", type=not_negative, default=0, metavar="N", help="context tokens of each row (default 0)")
    add("--prefill", type=sizes, default=_DEFAULT.prefill, metavar=lengths, help="prompt lengths, or none")
    add(
        "--packed",
        type=prompts,
        default=_DEFAULT.packed,
        metavar="8x64",
        help="prompts read at once, or none",
    )
    add("--new", type=positive, default=_DEFAULT.new, metavar="N", help="tokens decoded (default 128)")
    add(
        "--stall",
        type=prompts,
        metavar="[Kx]N",
        help="gaps of the most rows of --rows while K prompts of N tokens are read",
    )
    add("--repeat", type=positive, default=_DEFAULT.repeat, metavar="R", help="medians of R runs (default 3)")
    add("--device", metavar="D", help="auto, cpu or cuda (default: from the settings)")
    add("--json", action="store_true", help="print one JSON object; progress stays on stderr")


def run(args: argparse.Namespace) -> int:
    """Measure and print; returns the exit code."""
    workload = _workload(args)
    settings = read_settings()
    path = chosen_model(args, settings)
    from app.bench.report import render

    engine = make_engine(settings.engine, args.device)
    try:
        say(f"loading {path.name}")
        figures = measure(engine, engine.load(path), workload)
    finally:
        engine.close()
    print(json.dumps(figures) if args.json else render(figures))
    return 0


def measure(engine: "Engine", model: "Model", workload: Workload) -> "Figures":
    """Run the workload; returns the object that `--json` prints."""
    from app.bench.measure import Bench
    from app.bench.workload import RandomPrompts

    _check_fits(workload, model.context_length)
    tokenizer = model.tokenizer
    bench = Bench(model, RandomPrompts(tokenizer.vocab_size, tokenizer.is_control), say)
    bench.warm_up(max(workload.rows, default=1))
    figures = _parts(bench, workload)
    stats = engine.stats()
    return {
        "model": model.name,
        "device": stats.device,
        "kernels": stats.kernels,
        "versions": _versions(),
        "fallbacks": list(stats.fallbacks),
        **figures,
        "memory": {
            "process": stats.process_bytes,
            "weights": model.info.weight_bytes,
            "kv budget": stats.kv_bytes_total,
        },
    }


def _parts(bench: "Bench", workload: Workload) -> "Figures":
    repeat, rows = workload.repeat, max(workload.rows, default=1)
    return {
        "prefill": [bench.prefill(tokens, repeat) for tokens in workload.prefill],
        "decode": [bench.decode(count, workload.depth, workload.new, repeat) for count in workload.rows],
        "packed": bench.packed(workload.packed, repeat) if workload.packed else None,
        "stall": bench.stall(workload.stall, rows, workload) if workload.stall else None,
    }


def _workload(args: argparse.Namespace) -> Workload:
    if args.new < 2:
        raise CommandError("--new: a speed needs at least 2 tokens", code=2)
    return Workload(args.rows, args.depth, args.prefill, args.packed, args.new, args.stall, args.repeat)


def _check_fits(workload: Workload, context: int) -> None:
    """Refuse before anything is measured what the model's context cannot hold."""
    needs = {"--depth": workload.depth + 2}
    if workload.packed:
        needs["--packed"] = workload.packed.tokens + 1
    if workload.stall:
        needs["--stall"] = workload.stall.tokens + 1
    for option, tokens in needs.items():
        if tokens > context:
            raise CommandError(
                f"{option}: {tokens} tokens are needed at once, but the model's context holds {context}",
                code=2,
            )


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in ("tui-chat", "torch", "triton"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
