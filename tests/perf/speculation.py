"""What drafting is worth: `python -m tests.perf.speculation --device cuda --model FILE`.

The same answers with and without drafts, in turns, on the built-in model or `--model FILE`. Few
models quote on request, so quoted and edited answers are dictated: every pass is computed and sampled
in full, and then the dictated token takes the sampled one's place. Prose is what the model says
itself; phrases that foretell little are dictated too, since what they cost is the question. Speeds are
tokens per second of the processor time of the process (`cpu`) and of the clock.
"""

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

import engine.runner.eager_runner
import engine.runner.graph_runner
from app.models.builtin import builtin_model_path
from engine.api.request import Request, SamplingParams
from engine.engine import Engine, Model
from engine.runner.sampler import Sampled, sample_rows
from kernels.sampling.sampler import sample

PAGE = Path(__file__).parents[2] / "README.md"
STORY = "Once upon a time there was a king who had three daughters and a garden full of apple trees."
LONGEST = 16_384
"""Tokens of a dictated text on a GPU."""


@dataclass(frozen=True)
class Case:
    """One answer to be given."""

    name: str
    request: Request
    dictated: tuple[int, ...] = ()


@dataclass(frozen=True)
class Run:
    """One answer's figures."""

    cpu: float
    clock: float
    ids: tuple[int, ...]
    drafted: int
    accepted: int
    ticks: Counter[tuple[tuple[int, int, int], ...]]
    """By the shapes of their passes."""


class DeviceDictation:
    """A sampler of the one row that runs on a GPU; what it does is captured with the passes."""

    def __init__(self) -> None:
        self._text = torch.full((LONGEST,), -1, dtype=torch.int32, device="cuda")
        """What stands at each place; -1 where the sampled token counts."""

    def choose(self, case: Case) -> None:
        """Dictate a case's text, or nothing; between two answers."""
        text = (*case.request.prompt_ids, *case.dictated) if case.dictated else ()
        self._text.fill_(-1)
        self._text[: len(text)] = torch.tensor(text, dtype=torch.int32, device="cuda")
        torch.cuda.synchronize()

    def sample(self, logits: Tensor, state: Any, slots: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """`kernels.sampling.sampler.sample`, and the dictated tokens in place of its own."""
        ids, finite = sample(logits, state, slots, lengths)
        place = lengths[slots.clamp(min=0)].clamp(max=LONGEST - 1)
        told = self._text[place]
        return torch.where((slots >= 0) & (told >= 0), told, ids), finite


def dictation(cases: list[Case]) -> Callable[..., Sampled]:
    """A sampler that replaces what it sampled by the dictated tokens of requests that have some."""
    texts = {case.name: (*case.request.prompt_ids, *case.dictated) for case in cases if case.dictated}

    def dictate(logits, sequences, drafts) -> Sampled:
        result = sample_rows(logits, sequences, drafts)
        for sequence in sequences:
            text = texts.get(sequence.request.label)
            if text is not None:
                start, draft = sequence.num_target, drafts.get(sequence.sequence_id, [])
                true = next((n for n, token in enumerate(draft) if text[start + n] != token), len(draft))
                result.accepted[sequence.sequence_id] = draft[:true]
                result.ids[sequence.sequence_id] = text[start + true]
        return result

    return dictate


def make_cases(model: Model, tokens: int) -> list[Case]:
    """Quoting, editing (every fifteenth token is another one), prose and phrases that foretell little."""
    page = model.tokenizer.encode(PAGE.read_text(encoding="utf-8"))[: 2 * tokens]
    passage = page[len(page) // 4 :][: tokens + 32]
    rng = random.Random(5)
    edited = [rng.choice(page) if rng.random() < 1 / 15 else token for token in passage]
    drawn = SamplingParams(temperature=0.8, seed=3)

    def case(name: str, prompt: list[int], dictated: list[int]) -> Case:
        request = Request(tuple(prompt), drawn, max_tokens=tokens, ignore_eog=True, label=name)
        return Case(name, request, tuple(dictated))

    story = model.tokenizer.encode(STORY)
    return [
        case("quoting", page, passage),
        case("editing", page, edited),
        case("prose", story, []),
        case("prose after a page", page, []),
        case("pairs with any continuation", page, _phrases(page, 2, tokens + 32, rng)),
        case("three words, then any", page, _phrases(page, 3, tokens + 32, rng)),
    ]


def _phrases(page: list[int], length: int, count: int, rng: random.Random) -> list[int]:
    """A few phrases of the page again and again, each followed by another token each time."""
    phrases = [page[(start := rng.randrange(len(page) - length)) : start + length] for _ in range(6)]
    text: list[int] = []
    while len(text) < count:
        text += [*rng.choice(phrases), rng.choice(page)]
    return text


def run(engine: Engine, model: Model, case: Case, drafting: bool) -> Run:
    """Answer once; the prompt's reading is not in the figures."""
    loop = engine._loop
    loop._speculator.enabled = drafting
    generation = model.submit(case.request)
    sequence = None
    ids: list[int] = []
    started = (0.0, 0.0)
    for event in generation.events():
        if sequence is None:
            sequence = loop.scheduler.sequences.get(generation.sequence_id)
            started = time.process_time(), time.perf_counter()
            first = len(event.token_ids)
        ids += getattr(event, "token_ids", ())
    cpu, clock = time.process_time() - started[0], time.perf_counter() - started[1]
    assert sequence is not None, "the answer was over before it was looked at; ask for more tokens"
    speeds = (len(ids) - first) / cpu, (len(ids) - first) / clock
    ticks = Counter(tick.shapes for tick in loop.ticks.records() if tick.ended_at > started[1])
    return Run(*speeds, tuple(ids), sequence.drafted, sequence.accepted, ticks)


def measure(engine: Engine, model: Model, case: Case, repeat: int) -> str:
    """Pairs of answers without and with drafts, as a line and the passes of the last answer."""
    run(engine, model, case, True)
    pairs = [(run(engine, model, case, False), run(engine, model, case, True)) for _ in range(repeat)]
    same = all(off.ids == on.ids for off, on in pairs)
    last = pairs[-1][1]
    cpu, clock = (
        (median(getattr(off, kind) for off, _ in pairs), median(getattr(on, kind) for _, on in pairs))
        for kind in ("cpu", "clock")
    )
    passes = ", ".join(f"{count} x {shapes}" for shapes, count in last.ticks.most_common(4))
    return (
        f"{case.name}: cpu {cpu[0]:.1f} -> {cpu[1]:.1f} tok/s ({cpu[1] / cpu[0]:.2f}x), clock "
        f"{clock[0]:.1f} -> {clock[1]:.1f} ({clock[1] / clock[0]:.2f}x), "
        f"{last.accepted} of {last.drafted} drafts accepted, texts {'equal' if same else 'DIFFER'}"
        + (f"\n    passes: {passes}" if passes else "")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--weight-dtype", default="auto")
    parser.add_argument("--tokens", type=int, default=None, help="default 200, on a GPU 400")
    parser.add_argument("--repeat", type=int, default=None, help="default 5, on a GPU 2")
    options = parser.parse_args()
    on_gpu = options.device == "cuda" or (options.device == "auto" and torch.cuda.is_available())
    tokens = options.tokens or (400 if on_gpu else 200)
    told = DeviceDictation() if on_gpu else None
    if told is not None:
        engine.runner.graph_runner.sample = told.sample
    with Engine(options.device, weight_dtype=options.weight_dtype) as served:
        model = served.load(options.model or builtin_model_path())
        cases = make_cases(model, tokens)
        engine.runner.eager_runner.sample_rows = dictation(cases)
        while model.compiling():
            time.sleep(0.05)
        for case in cases:
            if told is not None:
                told.choose(case)
            print(measure(served, model, case, options.repeat or (2 if on_gpu else 5)), flush=True)


if __name__ == "__main__":
    main()
