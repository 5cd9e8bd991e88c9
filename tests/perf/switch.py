"""Gaps of one chat's tokens before, while and after another chat switches between models.

python -m tests.perf.switch --device cpu --model MODEL --other OTHER
"""

import argparse
from pathlib import Path

from app.models.make import switch_often
from engine.api.request import Request, SamplingParams
from engine.engine import Engine, Model
from tests.perf.gaps import Stream


def ask(model: Model) -> str:
    """What the chat that switches gets for its message."""
    prompt = tuple(model.tokenizer.encode("The sea is"))
    return model.submit(Request(prompt, SamplingParams(temperature=0.0), max_tokens=16)).result(600)[0]


def main() -> None:
    """Switch to the other model and back a few times beside a stream of the first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--other", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=300, help="of the stream before and after")
    args = parser.parse_args()
    switch_often()
    with Engine(args.device, speculation="off") as engine:
        model = engine.load(args.model)
        stream = Stream(model, "Once upon a time")
        stream.wait(20)
        with stream.during("before"):
            stream.wait(args.tokens)
        for _ in range(args.times):
            with stream.during("plan"):
                plan = engine.plan_load(args.other)
            with stream.during("load"):
                other = engine.load(args.other, pause=plan.model_ids)
            with stream.during("answers of both models"):
                wanted = ask(other)
            with stream.during("pause"):
                engine.pause_model(other.id)
            with stream.during("message that wakes it"):
                woken = ask(other)
            if woken != wanted:
                raise SystemExit(f"after a pause the answer is {woken!r}, not {wanted!r}")
            with stream.during("unload"):
                other.unload()
        with stream.during("after"):
            stream.wait(args.tokens)
        print(stream.report())
        stream.end()


if __name__ == "__main__":
    main()
