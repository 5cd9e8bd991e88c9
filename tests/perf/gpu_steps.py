"""What the host does in a decode tick on a GPU: allocations, graph replays and time.

    python -m tests.perf.gpu_steps --model FILE --rows 8 --steps 10000

Prints device allocations during the steps (of the caching allocator, all of them), the share of
passes that were one replay of a captured graph, and the host's time per tick without its waiting.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from app.models.builtin import builtin_model_path
from engine.api.request import Request, SamplingParams
from engine.engine import Engine


class Waiting:
    """Adds up the time that the engine's thread waits for the device, tick by tick."""

    def __init__(self, runner: Any) -> None:
        self._collect, self._read = runner.collect, runner._read
        self.host_ms: list[float] = []
        self._since = time.perf_counter()
        runner._read = self.read

    def read(self, flight: Any) -> Any:
        """Measure from the end of the last wait to the start of this one."""
        self.host_ms.append((time.perf_counter() - self._since) * 1e3)
        flight.done.synchronize()
        self._since = time.perf_counter()
        return self._read(flight)


def measure(path: Path, rows: int, steps: int) -> dict[str, object]:
    """Decode `steps` ticks of `rows` rows; returns the figures."""
    with Engine("cuda") as engine:
        model = engine.load(path)
        runner: Any = engine._loop.models.get(model._key).runner
        # What is compiled beside the steps would count as their allocations.
        greedy = SamplingParams(temperature=0.0)
        new = min(steps, model.context_length - 64)

        def round_() -> None:
            answers = [
                model.submit(Request((10 + row, 20), greedy, max_tokens=new, ignore_eog=True))
                for row in range(rows)
            ]
            for answer in answers:
                answer.result(600)

        while model.compiling():
            time.sleep(0.05)
        round_()
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        replays, eager = runner.replays, runner.eager_passes
        waiting = Waiting(runner)
        done = 0
        while done < steps:
            round_()
            done += new
        replays, eager = runner.replays - replays, runner.eager_passes - eager
        return {
            "model": path.name,
            "rows": rows,
            "ticks": replays + eager,
            "device_allocations": torch.cuda.memory_stats()["allocation.all.allocated"] - before,
            "replay_share": replays / (replays + eager),
            "host_ms_p50": statistics.median(waiting.host_ms),
            "host_ms_p99": statistics.quantiles(waiting.host_ms, n=100)[98],
        }


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=builtin_model_path())
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10_000)
    args = parser.parse_args()
    print(json.dumps(measure(args.model, args.rows, args.steps)))


if __name__ == "__main__":
    main()
