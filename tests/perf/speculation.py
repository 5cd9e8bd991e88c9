"""What guessing is worth: `python -m tests.perf.speculation --tokens 200 --repeat 5`.

The same answers with and without guesses, in turns, on the built-in model or `--model FILE`. That
model cannot quote, so quoted and edited answers are dictated: every pass is computed and sampled in
full, and then the dictated token takes the sampled one's place. Prose is what the model says itself.
Speeds are tokens per second of the processor time of the process (`cpu`) and of the clock.
"""

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import engine.runner
from app.builtin_model import builtin_model_path
from engine.engine import Engine, Model
from engine.request import Request, SamplingParams
from engine.sampler import Sampled, sample_rows

PAGE = Path(__file__).parents[2] / "README.md"
STORY = "Once upon a time there was a king who had three daughters and a garden full of apple trees."


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


def dictation(cases: list[Case]) -> Callable[..., Sampled]:
    """A sampler that replaces what it sampled by the dictated tokens of requests that have some."""
    texts = {case.name: (*case.request.prompt_ids, *case.dictated) for case in cases if case.dictated}

    def dictate(logits, sequences, drafts) -> Sampled:
        result = sample_rows(logits, sequences, drafts)
        for sequence in sequences:
            text = texts.get(sequence.request.label)
            if text is not None:
                start, draft = sequence.num_target, drafts.get(sequence.sequence_id, [])
                true = next((n for n, guess in enumerate(draft) if text[start + n] != guess), len(draft))
                result.confirmed[sequence.sequence_id] = draft[:true]
                result.ids[sequence.sequence_id] = text[start + true]
        return result

    return dictate


def make_cases(model: Model, tokens: int) -> list[Case]:
    """Quoting, editing (every fifteenth token is another one) and prose."""
    page = model.tokenizer.encode(PAGE.read_text(encoding="utf-8"))[: 2 * tokens]
    passage = page[len(page) // 4 :][: tokens + 32]
    rng = random.Random(5)
    edited = [rng.choice(page) if rng.random() < 1 / 15 else token for token in passage]
    drawn = SamplingParams(temperature=0.8, seed=3)

    def case(name: str, prompt: list[int], dictated: list[int]) -> Case:
        request = Request(tuple(prompt), drawn, max_tokens=tokens, ignore_eog=True, label=name)
        return Case(name, request, tuple(dictated))

    return [
        case("quoting", page, passage),
        case("editing", page, edited),
        case("prose", model.tokenizer.encode(STORY), []),
        case("prose after a page", page, []),
    ]


def run(engine: Engine, model: Model, case: Case, guessing: bool) -> Run:
    """Answer once; the prompt's reading is not in the figures."""
    loop = engine._loop
    loop._config = replace(loop._config, speculation=guessing)
    generation = model.submit(case.request)
    sequence = None
    ids: list[int] = []
    started = (0.0, 0.0)
    for event in generation.events():
        if sequence is None:
            sequence = loop.scheduler.sequences.get(generation.sequence_id)
            started = time.process_time(), time.perf_counter()
        ids += getattr(event, "token_ids", ())
    cpu, clock = time.process_time() - started[0], time.perf_counter() - started[1]
    assert sequence is not None, "the answer was over before it was looked at; ask for more tokens"
    speeds = (len(ids) - 1) / cpu, (len(ids) - 1) / clock
    return Run(*speeds, tuple(ids), sequence.drafted, sequence.accepted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--weight-dtype", default="auto")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    with Engine(options.device, weight_dtype=options.weight_dtype) as served:
        model = served.load(options.model or builtin_model_path())
        cases = make_cases(model, options.tokens)
        engine.runner.sample_rows = dictation(cases)
        for case in cases:
            run(served, model, case, True)
            pairs = [
                (run(served, model, case, False), run(served, model, case, True))
                for _ in range(options.repeat)
            ]
            same = all(off.ids == on.ids for off, on in pairs)
            last = pairs[-1][1]
            cpu, clock = (
                (median(getattr(off, kind) for off, _ in pairs), median(getattr(on, kind) for _, on in pairs))
                for kind in ("cpu", "clock")
            )
            print(
                f"{case.name}: cpu {cpu[0]:.1f} -> {cpu[1]:.1f} tok/s ({cpu[1] / cpu[0]:.2f}x), clock "
                f"{clock[0]:.1f} -> {clock[1]:.1f} ({clock[1] / clock[0]:.2f}x), "
                f"{last.accepted} of {last.drafted} guesses confirmed, texts {'equal' if same else 'DIFFER'}"
            )


if __name__ == "__main__":
    main()
