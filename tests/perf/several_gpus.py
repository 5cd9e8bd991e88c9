"""One model on each of two GPUs: speed of both together against each alone, and whether they agree.

    python -m tests.perf.several_gpus --model MODEL --small SMALL --rows 8 --tokens 1024

Loads SMALL, then MODEL twice: each load goes to the GPU with the most free memory, so that MODEL is on both.
Logits of MODEL on one GPU are held against those on the other; greedy answers of all three run at once.
Prints a JSON object a line as soon as a figure is there.
"""

import argparse
import json
import random
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import torch

from app.models.make import switch_often
from engine import Engine, Engines, Model, Request, SamplingParams, open_engine

PROMPT = 64
GREEDY = SamplingParams(temperature=0.0)


def say(what: str, **figures: Any) -> None:
    """One line of JSON."""
    print(json.dumps({"what": what} | figures), flush=True)


def prompt(model: Model, seed: int) -> tuple[int, ...]:
    """Random ids, none of them a control token's."""
    drawn, count = random.Random(seed), model.tokenizer.vocab_size
    ids = (drawn.randrange(count) for _ in range(8 * PROMPT))
    return tuple([i for i in ids if not model.tokenizer.is_control(i)][:PROMPT])


class Rows(threading.Thread):
    """Decodes rows of one model and counts their tokens while all of them run."""

    def __init__(self, model: Model, rows: int, tokens: int, seed: int) -> None:
        super().__init__()
        self._model, self._rows, self._tokens, self._seed = model, rows, tokens, seed
        self.begun = self.ended = 0.0
        """From when the last row had its first token until the first row had its last one."""
        self.count = 0

    def run(self) -> None:
        """Ask, and wait for all answers."""
        asked = [
            self._model.submit(
                Request(
                    prompt(self._model, self._seed + row), GREEDY, max_tokens=self._tokens, ignore_eog=True
                )
            )
            for row in range(self._rows)
        ]
        seen: list[list[tuple[float, int]]] = [[] for _ in asked]
        while not all(generation.finished for generation in asked):
            time.sleep(0.002)
            for times, generation in zip(seen, asked, strict=True):
                new = sum(len(getattr(event, "token_ids", ())) for event in generation.poll())
                if new:
                    times.append((time.perf_counter(), new))
        self.begun = max(times[0][0] for times in seen)
        self.ended = min(times[-1][0] for times in seen)
        self.count = sum(new for times in seen for at, new in times if self.begun < at <= self.ended)


def decode(models: list[Model], rows: int, tokens: int, seed: int) -> float:
    """Tokens a second of all models together, counted while all rows of all run."""
    running = [Rows(model, rows, tokens, seed + 100 * number) for number, model in enumerate(models)]
    for one in running:
        one.start()
    for one in running:
        one.join()
    return sum(one.count / (one.ended - one.begun) for one in running)


def compare(one: Model, other: Model) -> None:
    """The same file on two GPUs: logits of one prompt, and a greedy answer."""
    ids = list(prompt(one, 7))
    mine, theirs = one.logits(ids).float().cpu(), other.logits(ids).float().cpu()
    asked = [
        model.submit(Request(tuple(ids), GREEDY, max_tokens=64, ignore_eog=True)) for model in (one, other)
    ]
    texts = [generation.result(300)[0] for generation in asked]
    say(
        "the same file on two GPUs",
        devices=[one.device, other.device],
        weights_on=[weights_on(model) for model in (one, other)],
        largest_difference=float((mine - theirs).abs().max()),
        largest_logit=float(mine.abs().max()),
        same_best=float((mine.argmax(-1) == theirs.argmax(-1)).float().mean()),
        same_answer=texts[0] == texts[1],
    )


def weights_on(model: Model) -> str:
    """The device of the memory that holds its weights."""
    loop = model._engine._loop
    memory = loop.call(lambda: loop.models.get(model.id).runner.weights)
    return str(memory._bytes.device)


def measure(engines: Engines, one: Model, other: Model, args: argparse.Namespace) -> None:
    """Each alone and both together in turn, so that a slow spell meets all."""
    speeds: dict[str, list[float]] = {"first": [], "second": [], "both": []}
    for repeat in range(args.repeat):
        seed = 1000 * repeat
        for name, models in (("first", [one]), ("second", [other]), ("both", [one, other])):
            speeds[name].append(decode(models, args.rows, args.tokens, seed))
    found = {name: statistics.median(values) for name, values in speeds.items()}
    ratio = found["both"] / ((found["first"] + found["second"]) / 2)
    say("tokens a second", **{k: round(v) for k, v in found.items()}, ratio=round(ratio, 3), all=speeds)
    running = [Rows(model, args.rows, args.tokens, 9) for model in (one, other)]
    for thread in running:
        thread.start()
    time.sleep(1.2)
    stats, use = engines.stats(), engines.device_use()
    say(
        "while both write",
        together=_figures(stats),
        each=[_figures(part) for part in stats.parts],
        memory=None if use is None else [(part.device, part.memory_used, part.watts) for part in use.parts],
    )
    for thread in running:
        thread.join()


def _figures(stats: Any) -> dict[str, Any]:
    names = ("device", "decode_tok_s", "rows", "kv_bytes_total", "kv_bytes_used", "tick_ms")
    return {name: getattr(stats, name) for name in names} | {"sequences": len(stats.sequences)}


def move(engines: Engines, model: Model) -> None:
    """Put a model aside and bring it back: it answers as before, on the same GPU."""
    wanted = model.logits(list(prompt(model, 11)))
    started = time.perf_counter()
    engines.pause_model(model.id)
    paused = time.perf_counter()
    engines.wake_model(model.id)
    woken = time.perf_counter()
    same = bool(model.logits(list(prompt(model, 11))).equal(wanted))
    say("aside and back", device=model.device, pause=paused - started, wake=woken - paused, same=same)


def alone(path: Path) -> None:
    """An engine of the second GPU alone, which takes nothing of the first."""
    free = torch.cuda.mem_get_info(0)[0]
    with Engine("cuda:1", speculation="off") as engine:
        model = engine.load(path)
        text = model.submit(Request(prompt(model, 3), GREEDY, max_tokens=32, ignore_eog=True)).result(300)[0]
        taken = free - torch.cuda.mem_get_info(0)[0]
        say("cuda:1 alone", device=model.device, characters=len(text), taken_of_the_first=taken)


def load(engines: Engines, path: Path) -> Model:
    """Load it, and say where it went."""
    plan, started = engines.plan_load(path), time.perf_counter()
    model = engines.load(path)
    taken = [torch.cuda.mem_get_info(gpu) for gpu in range(torch.cuda.device_count())]
    say(
        "load",
        model=model.name,
        planned=plan.device,
        device=model.device,
        seconds=round(time.perf_counter() - started, 1),
        used=[total - free for free, total in taken],
    )
    return model


def main() -> None:
    """Load, compare, measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--small", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--patience", type=float, default=600.0, help="seconds to wait for compilers")
    args = parser.parse_args()
    switch_often()
    engines = open_engine("auto", speculation="off")
    if not isinstance(engines, Engines):
        raise SystemExit("there is one device; this needs two GPUs")
    with engines:
        small = load(engines, args.small)
        while not args.model.exists():
            time.sleep(0.1)
        one, other = load(engines, args.model), load(engines, args.model)
        three = [
            model.submit(Request(prompt(model, 3), GREEDY, max_tokens=32, ignore_eog=True))
            for model in (small, one, other)
        ]
        ends = [generation.result(300)[1] for generation in three]
        say("all three at once", tokens=[end.completion_tokens for end in ends])
        compare(one, other)
        deadline = time.monotonic() + args.patience
        while time.monotonic() < deadline and any(model.compiling() for model in (small, one, other)):
            time.sleep(0.1)
        say("compilers", done=time.monotonic() < deadline)
        decode([one, other], args.rows, 128, 5)
        measure(engines, one, other, args)
        move(engines, one)
        other.unload()
        say("unloaded", models=[(model.name, model.device) for model in engines.stats().models])
    alone(args.small)


if __name__ == "__main__":
    main()
