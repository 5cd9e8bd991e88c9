"""Tokens a second of rows that are held to a JSON schema, beside as many that are held to nothing.

    python -m tests.perf.constrained MODEL --device cuda --rows 8 --tokens 256

Schema and sampling keep every row writing to its last token. Rounds of both kinds take turns, so that what
else the computer does meets both; says the tokens a second of each, and what constraints cost. `open` has
members of every kind and a string that goes on; `bounded` a string with a longest length, near which a mask
takes milliseconds: a model of random weights gets there each time, where others have ended the string.
"""

import argparse
import json
import statistics
import time
from functools import partial
from itertools import product

from app.models.make import switch_often
from engine import Constraint, ConstraintKind, Engine, Generation, Model, Request, SamplingParams, TextDelta


def birds(name: dict[str, object]) -> Constraint:
    """A list of birds, each with such a name."""
    properties = {
        "kind": {"enum": ["tern", "gull", "auk"]},
        "seen": {"type": "integer", "minimum": 0, "maximum": 99999},
        "rare": {"type": "boolean"},
        "name": name,
    }
    item = {"type": "object", "properties": properties, "required": list(properties)}
    schema = {"type": "array", "minItems": 1000, "items": {**item, "additionalProperties": False}}
    return Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema))


SCHEMAS = {
    "open": birds({"type": "string", "minLength": 8}),
    "bounded": birds({"type": "string", "minLength": 8, "maxLength": 40}),
}


def tok_s(model: Model, rows: int, tokens: int, held: Constraint | None) -> float:
    """Of all rows together, while all of them write."""
    ids = model.tokenizer.encode("Birds of the northern islands, as a list in JSON:")
    times: list[list[float]] = [[] for _ in range(rows)]
    generations = []
    for row in range(rows):
        request = Request(
            (*ids, 20 + row),
            SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=row),
            max_tokens=tokens,
            # A row that is held to nothing goes on behind its end; the others have none so soon.
            ignore_eog=held is None,
            constraint=held,
        )
        generation = model.submit(request)
        generation.set_listener(partial(note, generation, times[row]))
        generations.append(generation)
    for generation in generations:
        end = generation.result(600)[1]
        assert end.error is None and end.completion_tokens == tokens, end
    begin, end = max(row[0] for row in times), min(row[-1] for row in times)
    written = sum(begin < at <= end for row in times for at in row)
    return written / (end - begin)


def note(generation: Generation, times: list[float]) -> None:
    """When tokens came."""
    now = time.perf_counter()
    times += [now for event in generation.poll() if isinstance(event, TextDelta) for _ in event.token_ids]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    switch_often()
    with Engine(options.device) as engine:
        model = engine.load(options.model)
        started = time.perf_counter()
        for held in SCHEMAS.values():
            model.check_constraint(held)
        print(f"{model.name}: vocabulary and schemas compiled in {time.perf_counter() - started:.2f} s")
        print("rows schema    free tok/s   held tok/s    loss")
        for rows, (name, schema) in product(options.rows, SCHEMAS.items()):
            for held in (None, schema):
                # Passes of the shape are compiled and captured.
                tok_s(model, rows, 24, held)
            pairs = [
                [tok_s(model, rows, options.tokens, held) for held in (None, schema)]
                for _ in range(options.rounds)
            ]
            free, held_speed = (statistics.median(column) for column in zip(*pairs, strict=True))
            print(
                f"{rows:4} {name:<8} {free:12.1f} {held_speed:12.1f} {100 * (1 - held_speed / free):6.1f} %"
            )


if __name__ == "__main__":
    main()
