"""Tokens a second of rows that are held to a JSON schema, beside as many that are held to nothing.

    python -m tests.perf.constrained MODEL --device cuda --rows 8 --tokens 256

Schema and sampling keep every row writing to its last token. Rounds of both kinds take turns, so that what
else the computer does meets both; says the tokens a second of each, and what constraints cost. `open` has
members of every kind and a string that goes on; `bounded` a string with a longest length, near which a mask
takes milliseconds: a model of random weights gets there each time, where others have ended the string;
`choices` numbers, booleans and strings of a list. Where half of the rows are held, says the gaps between
tokens of those that are not, beside the gaps where none is.
"""

import argparse
import json
import statistics
import time
from functools import partial
from itertools import pairwise, product

import numpy as np

from app.models.make import switch_often
from engine import Constraint, ConstraintKind, Engine, Generation, Model, Request, SamplingParams, TextDelta


def birds(name: dict[str, object]) -> Constraint:
    """A list of birds, each with such a name."""
    return listed(
        {
            "kind": {"enum": ["tern", "gull", "auk"]},
            "seen": {"type": "integer", "minimum": 0, "maximum": 99999},
            "rare": {"type": "boolean"},
            "name": name,
        }
    )


def orders() -> Constraint:
    """A list of orders, without a string of one's own."""
    tag = {"enum": ["new", "sale", "gift", "bulky", "fragile"]}
    return listed(
        {
            "id": {"type": "integer", "minimum": 1, "maximum": 999999},
            "status": {"enum": ["open", "paid", "shipped", "returned", "lost"]},
            "price": {"type": "number", "minimum": 0, "maximum": 10000},
            "paid": {"type": "boolean"},
            "tags": {"type": "array", "items": tag, "maxItems": 4},
        }
    )


def listed(properties: dict[str, dict[str, object]]) -> Constraint:
    """A long list of objects that have all these members."""
    item = {"type": "object", "properties": properties, "required": list(properties)}
    schema = {"type": "array", "minItems": 1000, "items": {**item, "additionalProperties": False}}
    return Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema))


SCHEMAS = {
    "open": birds({"type": "string", "minLength": 8}),
    "bounded": birds({"type": "string", "minLength": 8, "maxLength": 40}),
    "choices": orders(),
}


def tok_s(model: Model, rows: int, tokens: int, held: Constraint | None) -> float:
    """Of all rows together, while all of them write."""
    times = written(model, [held] * rows, tokens)
    begin, end = max(row[0] for row in times), min(row[-1] for row in times)
    return sum(begin < at <= end for row in times for at in row) / (end - begin)


def gaps(times: list[list[float]]) -> str:
    """Between tokens of a row, in milliseconds."""
    all_gaps = [(after - before) * 1e3 for row in times for before, after in pairwise(row)]
    return "p50 {:.2f} p99 {:.2f} most {:.2f}".format(*np.percentile(all_gaps, (50, 99, 100)))


def written(model: Model, held: list[Constraint | None], tokens: int) -> list[list[float]]:
    """When the tokens of rows that are held to these came."""
    ids = model.tokenizer.encode("Birds of the northern islands, as a list in JSON:")
    times: list[list[float]] = [[] for _ in held]
    generations = []
    for row, constraint in enumerate(held):
        request = Request(
            (*ids, 20 + row),
            SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=row),
            max_tokens=tokens,
            # A row that is held to nothing goes on behind its end; the others have none so soon.
            ignore_eog=constraint is None,
            constraint=constraint,
        )
        generation = model.submit(request)
        generation.set_listener(partial(note, generation, times[row]))
        generations.append(generation)
    for generation in generations:
        end = generation.result(600)[1]
        assert end.error is None and end.completion_tokens == tokens, end
    return times


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
        for rows, (name, schema) in product(options.rows, SCHEMAS.items()):
            free_rows = -(-rows // 2)
            beside = [None] * free_rows + [schema] * (rows - free_rows)
            written(model, beside, 24)
            alone, others = (
                gaps(written(model, each, options.tokens)[:free_rows]) for each in ([None] * rows, beside)
            )
            print(f"{rows:4} rows, gaps of half of them, ms: all free {alone}; others {name} {others}")


if __name__ == "__main__":
    main()
