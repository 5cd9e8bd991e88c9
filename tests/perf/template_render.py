"""What a turn pays for its template: `python -m tests.perf.template_render [template.jinja …] [--json]`.

Wall time of one rendering through the worker, which is warm: of a short chat and of one with a message of
`--tokens` tokens (four characters each, a tenth of them marks that stand for hidden ones). Bar: 2 ms at the
95th percentile on an idle machine. Also how long the first rendering waits where nothing was started.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

from engine.templates.renderer import Renderer

OWN = Path(__file__).parents[1] / "golden" / "templates"
SHORT = [("user", "What is a tern?"), ("assistant", "A sea bird."), ("user", "And what does it eat?")]


def messages_of(tokens: int) -> list[dict[str, str]]:
    long = ("abc def g\U000f0000 " * (tokens * 4 // 10 + 1))[: tokens * 4]
    turns = [*SHORT, ("assistant", "Fish."), ("user", long)] if tokens else SHORT
    return [{"role": role, "content": content} for role, content in turns]


def measure(paths: list[Path], tokens: int, repeat: int) -> dict[str, float]:
    """Milliseconds of `repeat` renderings of every template, all together."""
    renderer = Renderer()
    started = time.perf_counter()
    renderer.check("")
    result = {"first_ms": 1000 * (time.perf_counter() - started)}
    for name, messages in (("short", messages_of(0)), ("long", messages_of(tokens))):
        costs = []
        for path in paths:
            source = path.read_text()
            given = {"messages": messages, "add_generation_prompt": True, "bos_token": "", "eos_token": ""}
            renderer.render(source, given)
            for _ in range(repeat):
                started = time.perf_counter()
                renderer.render(source, given)
                costs.append(1000 * (time.perf_counter() - started))
        result |= {f"{name}_ms_p50": statistics.median(costs)}
        result |= {f"{name}_ms_p95": statistics.quantiles(costs, n=20)[-1]}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("templates", nargs="*", type=Path, default=sorted(OWN.glob("*.jinja")))
    parser.add_argument("--tokens", type=int, default=16_000)
    parser.add_argument("--repeat", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = measure(args.templates, args.tokens, args.repeat)
    print(json.dumps(result) if args.json else "\n".join(f"{k:14} {v:8.2f}" for k, v in result.items()))


if __name__ == "__main__":
    main()
