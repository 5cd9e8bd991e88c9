"""Speed of a model that a GPU does not hold: what the processor computes of it, and what others notice.

    python -m tests.perf.offload --model MODEL --vram-limit 8GiB [--beside SMALL] [--host-layers N]

Prints where its layers are, what was planned and what loading took of both memories, from how many tokens on
the GPU reads alone, how fast 512 and 2,048 tokens are read and one and four chats written, and the gaps of
another model's answer meanwhile. The last lines say how llama.cpp's figures of the same split are had: `-ngl`
for layers, `--n-cpu-moe` for experts.
"""

import argparse
import statistics
import time
from pathlib import Path

from app.models.builtin import builtin_model_path
from app.models.make import switch_often
from app.settings.file import parse_layers, parse_size
from engine.api.request import Finished, Request, SamplingParams
from engine.core.device_choice import usable_cores
from engine.device.memory import free_bytes, process_bytes
from engine.engine import Engine, Model
from tests.perf.gaps import Stream

GREEDY = SamplingParams(temperature=0.0)
READS, WRITE, ROUNDS = (512, 2048), 64, 3
MIB = 1 << 20


def prompt(model: Model, tokens: int, seed: int) -> tuple[int, ...]:
    """Ids that no other seed shares a prefix with."""
    vocab = model._vocab_size - 200
    return tuple(100 + (seed * 7919 + at * 104_729) % vocab for at in range(tokens))


def answers(model: Model, prompts: list[tuple[int, ...]], new: int) -> list[Finished]:
    """How each ended, all begun together."""
    running = [model.submit(Request(ids, GREEDY, max_tokens=new, ignore_eog=True)) for ids in prompts]
    ends = [one.result(1200)[1] for one in running]
    for end in ends:
        if end.error is not None:
            raise SystemExit(f"an answer failed: {end.error}")
    return ends


def reading_speed(model: Model, tokens: int, seed: int) -> float:
    """Tokens a second of one prompt by itself."""
    started = time.perf_counter()
    answers(model, [prompt(model, tokens, seed)], 1)
    return tokens / (time.perf_counter() - started)


def writing_speed(model: Model, rows: int, seed: int) -> float:
    """Tokens a second of so many chats together, behind their first tokens."""
    prompts = [prompt(model, 16, seed + row) for row in range(rows)]
    times = []
    for new in (2, 2 + WRITE):
        started = time.perf_counter()
        answers(model, prompts, new)
        times.append(time.perf_counter() - started)
    return rows * WRITE / (times[1] - times[0])


def shown(speeds: list[float]) -> list[float]:
    """In order, with a digit."""
    return [round(speed, 1) for speed in sorted(speeds)]


def load(engine: Engine, path: Path) -> Model:
    """Load, and print what was planned and what it took."""
    device = engine._ops.device
    plan = engine.plan_load(path)
    print(f"plan: {plan.placement or 'all layers on the device'}; {plan.needed_bytes / MIB:,.0f} MiB needed")
    if plan.tok_s is not None:
        print(f"plan: about {plan.tok_s:.1f} tok/s")
    if plan.refusal is not None:
        raise SystemExit(plan.refusal)
    before, host, started = free_bytes(device), process_bytes(), time.perf_counter()
    model = engine.load(path)
    info = model.info
    print(f"load: {info.placement or 'all layers on the device'}, {time.perf_counter() - started:.1f} s")
    taken, resident = (before - free_bytes(device)) / MIB, (process_bytes() - host) / MIB
    print(f"device: {info.weight_bytes / MIB:,.0f} MiB of weights; {taken:,.0f} MiB less are free")
    print(f"host: {info.host_bytes / MIB:,.0f} MiB of weights; the process holds {resident:,.0f} MiB more")
    runner = engine._loop.models.by_key[model.id].runner
    if runner.slow is not None:
        print(
            f"the GPU reads alone from {runner.slow.long_from} tokens on; bus: {engine._ops.host_gb_s} GB/s"
        )
    print(f"KV: {info.kv_dtype}, room for {model.max_tokens:,} tokens of a chat")
    return model


def gaps(engine: Engine, model: Model, beside: Path) -> str:
    """Another model's gaps, alone and while this one reads and writes."""
    other = engine.load(beside)
    stream = Stream(other, "Once upon a time there was a")
    stream.wait(50)
    with stream.during("alone"):
        stream.wait(200)
    with stream.during("reading beside"):
        answers(model, [prompt(model, READS[-1], 900)], 1)
    with stream.during("writing beside"):
        answers(model, [prompt(model, 16, 901)], WRITE)
    stream.end()
    return stream.report()


def rival(engine: Engine, path: Path, model: Model) -> str:
    """How to have llama.cpp's figures of the same split."""
    resident = engine._loop.models.by_key[model.id]
    whole, experts = resident.placement.layers, resident.placement.experts
    # It counts the output matrix as a layer.
    split = f"-ngl {resident.config.num_layers - whole + 1}" if whole else f"-ngl 99 --n-cpu-moe {experts}"
    common = f"-m {path} -t {usable_cores()} -fa 1 {split}"
    reads = ",".join(map(str, READS))
    one = f"llama-bench {common} -p {reads} -n {WRITE} -ub {READS[-1]} -r {ROUNDS}"
    return f"llama.cpp: {one}\nllama.cpp: llama-batched-bench {common} -npp 16 -ntg {WRITE} -npl 1,4 -c 4096"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--vram-limit", type=parse_size, default=None)
    parser.add_argument("--host-layers", type=parse_layers, default="auto")
    parser.add_argument("--beside", type=Path, default=builtin_model_path())
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    switch_often()
    with Engine(
        args.device, vram_limit_bytes=args.vram_limit, host_layers=args.host_layers, speculation="off"
    ) as engine:
        model = load(engine, args.model)
        answers(model, [prompt(model, 64, 1)], 8)
        for tokens in READS:
            reading = [reading_speed(model, tokens, tokens + round) for round in range(ROUNDS)]
            print(f"reading {tokens} tokens: {statistics.median(reading):,.1f} tok/s of {shown(reading)}")
        for rows in (1, 4):
            writing = [writing_speed(model, rows, 100 * rows + 10 * round) for round in range(ROUNDS)]
            print(f"writing, {rows} rows: {statistics.median(writing):,.1f} tok/s of {shown(writing)}")
        print(gaps(engine, model, args.beside))
        print(rival(engine, args.model, model))


if __name__ == "__main__":
    main()
