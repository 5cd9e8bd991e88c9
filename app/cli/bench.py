"""`tui-chat bench`: how fast a model runs on this computer, and how long running tabs wait."""

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from app.bench.workload import (
    Rows,
    Workload,
    default_workload,
    not_negative,
    positive,
    prompts,
    row_counts,
    sizes,
)
from app.cli.common import (
    CommandError,
    add_host_layers,
    add_model_arguments,
    chosen_model,
    engine_settings,
    read_settings,
    say,
)
from app.models.make import make_engine
from app.models.stores.ollama import weights_of
from app.settings.file import parse_size
from app.terminal.controls import for_stream

if TYPE_CHECKING:
    from app.bench.measure import Bench, Figures
    from engine import AnyEngine, Model

_DEFAULT = Workload()
_POLL_SECONDS = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_model_arguments(parser)
    rows = ",".join(str(rows.count) for rows in _DEFAULT.rows)
    lengths = ",".join(map(str, _DEFAULT.prefill))
    add = parser.add_argument
    add(
        "--rows",
        type=row_counts,
        metavar=rows,
        help="sequences decoded at once, 8@512 behind 512 tokens each, or none",
    )
    add("--depth", type=not_negative, default=0, metavar="N", help="context tokens of each row (default 0)")
    add("--prefill", type=sizes, metavar=lengths, help="prompt lengths, or none")
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
    add("--device", metavar="D", help="auto, cpu, cuda or cuda:N (default: from the settings)")
    add("--vram-limit", metavar="SIZE", type=parse_size, help="most memory of a GPU, e.g. 12GiB")
    add_host_layers(parser)
    add(
        "--speculation",
        choices=("auto", "off"),
        default="off",
        help="guess tokens ahead (default off: a figure should not depend on what the text is)",
    )
    add("--batch-independent", action="store_true", help="results that no other row changes, on a GPU")
    add("--json", action="store_true", help="print one JSON object; progress stays on stderr")


def run(args: argparse.Namespace) -> int:
    """Measure and print; returns the exit code."""
    started = time.perf_counter()
    if args.new < 2:
        raise CommandError("--new: a speed needs at least 2 tokens", code=2)
    settings = read_settings()
    path = chosen_model(args, settings)
    from app.bench.report import render

    engine = make_engine(
        engine_settings(args, settings),
        device=args.device,
        vram_limit_bytes=args.vram_limit,
        speculation=args.speculation,
        batch_independent=args.batch_independent or None,
    )
    try:
        say(f"loading {path.name}")
        before = time.perf_counter()
        model = engine.load(weights_of(path))
        loaded = time.perf_counter()
        workload = _workload(args, model.device, model.context_length)
        check_fits(workload, model.context_length)
        bench = make_bench(model, engine)
        first = bench.first_token()
        start = {
            "load_s": round(loaded - before, 3),
            "first_token_s": round(loaded - started + first, 3),
        }
        wait_until_ready(model)
        figures = measure(engine, model, bench, workload) | {"start": start, "speculation": args.speculation}
        figures["placement"] = model.info.placement
    finally:
        engine.close()
    print(for_stream(json.dumps(figures) if args.json else render(figures), sys.stdout))
    return 0


def wait_until_ready(model: "Model") -> None:
    """What is made ready beside it would slow down what is measured first."""
    if model.compiling():
        say("waiting until later passes are ready")
    while model.compiling():
        time.sleep(_POLL_SECONDS)


def make_bench(model: "Model", engine: "AnyEngine") -> "Bench":
    """A loaded model and fresh prompts for it."""
    from app.bench.measure import Bench
    from app.bench.workload import RandomPrompts

    tokenizer = model.tokenizer
    return Bench(model, RandomPrompts(tokenizer.vocab_size, tokenizer.is_control), say, engine.tick_log)


def measure(engine: "AnyEngine", model: "Model", bench: "Bench", workload: Workload) -> "Figures":
    """Run the workload; returns the object that `--json` prints."""
    from app.bench.machine import commit, describe, today, versions

    bench.warm_up(workload)
    figures = _parts(bench, workload)
    stats = engine.stats().of_device(model.device)
    return {
        "model": model.name,
        "quantization": model.info.quantization,
        "date": today(),
        "commit": commit(),
        "device": stats.device,
        "machine": describe(stats.device),
        "kernels": stats.kernels,
        "kv_dtype": stats.kv_dtype,
        "versions": versions(),
        "fallbacks": list(stats.slower),
        "new": workload.new,
        **figures,
        "memory": {
            "process": stats.process_bytes,
            "weights": model.info.weight_bytes,
            "kv budget": stats.kv_bytes_total,
        },
    }


def _parts(bench: "Bench", workload: Workload) -> "Figures":
    repeat = workload.repeat
    return {
        "prefill": [bench.prefill(tokens, repeat) for tokens in workload.prefill],
        "decode": [bench.decode(rows, workload.new, repeat) for rows in workload.rows],
        "packed": bench.packed(workload.packed, repeat) if workload.packed else None,
        "stall": bench.stall(workload.stall, workload) if workload.stall else None,
    }


def _workload(args: argparse.Namespace, device: str, context: int) -> Workload:
    """What the options say, and the device's defaults where they say nothing."""
    usual = default_workload(device, context)
    rows = usual.rows
    if args.rows is not None or args.depth:
        written = args.rows if args.rows is not None else [(rows.count, None) for rows in _DEFAULT.rows]
        rows = tuple(Rows(count, args.depth if depth is None else depth) for count, depth in written)
    return Workload(
        rows=rows,
        prefill=usual.prefill if args.prefill is None else args.prefill,
        packed=args.packed,
        new=args.new,
        stall=args.stall,
        stall_depth=args.depth,
        repeat=args.repeat,
    )


def check_fits(workload: Workload, context: int) -> None:
    """Refuse before anything is measured what the model's context cannot hold."""
    depth = max([rows.depth for rows in workload.rows] + [workload.stall_depth])
    needs = {"--depth": depth + 2}
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
