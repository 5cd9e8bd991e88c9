"""What tabs do to each other, in one run: focus, a second model, a chat's second turn, a fork.

    python -m tests.perf.contention [--model FILE] [--tokens 1500] [--busy 7] [--repeat 3] [--device D]

Prints JSON: the focused tab's time to its first token under busy tabs against the same alone; the
gaps of a tab of one model while another model reads a long prompt; the time to the first token of
turn two against turn one; that of a fork of the same chat and the KV that it shares; and how far
predicted ticks were from measured ones (|predicted − measured|, relative, 95th percentile).
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from app.bench.measure import Stream
from app.bench.statistics import gaps_inside, gaps_touching, median, percentile
from app.bench.workload import RandomPrompts
from app.models.builtin import builtin_model_path
from engine.engine import Engine, Model

FOCUSED_PROMPT = 500
DEPTH = 32


class Contention:
    """The scenarios on one engine."""

    def __init__(self, engine: Engine, model: Model, repeat: int) -> None:
        self.engine, self.model, self.repeat = engine, model, repeat
        tokenizer = model.tokenizer
        self.prompts = RandomPrompts(tokenizer.vocab_size, tokenizer.is_control)

    def busy(self, model: Model, rows: int) -> list[Stream]:
        """Rows that decode until they are cancelled."""
        limit = model.context_length - DEPTH
        streams = [Stream(model, self.prompts.make(DEPTH), limit) for _ in range(rows)]
        for stream in streams:
            stream.wait_first()
            stream.wait_tokens(stream.tokens + 16)
        return streams

    def first_token(self, prompt: tuple[int, ...], *, focused: bool = False) -> float:
        """Seconds to the first token of a request of its own."""
        stream = Stream(self.model, prompt, 2)
        if focused:
            self.engine.focus(stream.sequence_id)
        seconds = stream.wait_first()
        stream.wait()
        self.engine.focus(None)
        return seconds

    def focus(self, rows: int, background: int) -> dict[str, Any]:
        """Time to the first token of a focused tab: alone, under busy tabs, and while one of them reads."""
        self.first_token(self.prompts.make(FOCUSED_PROMPT))
        alone, under, beside = [], [], []
        for _ in range(self.repeat):
            alone.append(self.first_token(self.prompts.make(FOCUSED_PROMPT), focused=True))
            streams = self.busy(self.model, rows)
            under.append(self.first_token(self.prompts.make(FOCUSED_PROMPT), focused=True))
            reader = Stream(self.model, self.prompts.make(background), 1)
            beside.append(self.first_token(self.prompts.make(FOCUSED_PROMPT), focused=True))
            for stream in [*streams, reader]:
                stream.cancel()
        return {
            "rows": rows,
            "tokens": FOCUSED_PROMPT,
            "alone_ms": _ms(median(alone)),
            "busy_ms": _ms(median(under)),
            "busy_and_reading_ms": _ms(median(beside)),
            "ratio": round(median(under) / median(alone), 2),
            "ratio_reading": round(median(beside) / median(alone), 2),
        }

    def second_turn(self, tokens: int) -> dict[str, Any]:
        """Turn two of a chat, and a fork of it, against reading the whole for the first time."""
        cold, warm, forked, shared = [], [], [], 0
        for _ in range(self.repeat):
            history = self.prompts.make(tokens)
            cold.append(self.first_token(history))
            warm.append(self.first_token(history + self.prompts.make(20)))
            parent = Stream(
                self.model, history + self.prompts.make(20), self.model.context_length - tokens - 20
            )
            parent.wait_first()
            child = Stream(self.model, history + self.prompts.make(20), 64)
            forked.append(child.wait_first())
            shared = max(shared, self.shared_blocks(child))
            for stream in (parent, child):
                stream.cancel()
        return {
            "tokens": tokens,
            "cold_ms": _ms(median(cold)),
            "second_turn_ms": _ms(median(warm)),
            "ratio": round(median(warm) / median(cold), 3),
            "fork_ms": _ms(median(forked)),
            "fork_shared_blocks": shared,
        }

    def shared_blocks(self, child: Stream) -> int:
        """Blocks that a running stream shares, from the first snapshot that knows it."""
        while child.finished is None:
            for stats in self.engine.stats().sequences:
                if stats.sequence_id == child.sequence_id and stats.blocks_own + stats.blocks_shared:
                    return stats.blocks_shared
            time.sleep(0.002)
        return 0

    def two_models(self, path: Path, tokens: int) -> dict[str, Any]:
        """Gaps of a tab of this model while a second model reads a long prompt."""
        other = self.engine.load(path)
        while other.compiling():
            time.sleep(0.05)
        Stream(other, self.prompts.make(FOCUSED_PROMPT), 8).wait()
        idle, loaded, first = [], [], []
        for _ in range(self.repeat):
            (row,) = self.busy(self.model, 1)
            quiet_from = time.perf_counter()
            row.wait_tokens(row.tokens + 64)
            started = time.perf_counter()
            reader = Stream(other, self.prompts.make(tokens), 1)
            first.append(reader.wait_first())
            ended = time.perf_counter()
            row.wait_tokens(row.tokens + 1)
            for stream in (row, reader):
                stream.cancel()
            idle += gaps_inside(row.arrivals, quiet_from, started)
            loaded += gaps_touching(row.arrivals, started, ended)
        other.unload()
        return {
            "tokens": tokens,
            "idle_p99_ms": _ms(percentile(idle, 99)),
            "loaded_p50_ms": _ms(percentile(loaded, 50)),
            "loaded_p99_ms": _ms(percentile(loaded, 99)),
            "loaded_max_ms": _ms(max(loaded)),
            "ttft_ms": _ms(median(first)),
        }


def main() -> None:
    """Run every scenario once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=builtin_model_path())
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--busy", type=int, default=7)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    with Engine(options.device) as engine:
        model = engine.load(options.model)
        while model.compiling():
            time.sleep(0.05)
        run = Contention(engine, model, options.repeat)
        figures = {
            "device": engine.device,
            "model": model.name,
            "focus": run.focus(options.busy, options.tokens),
            "second_turn": run.second_turn(options.tokens),
            "two_models": run.two_models(options.model, options.tokens),
            "tick_error_p95": round(engine.stats().tick_error, 3),
        }
    print(json.dumps(figures, indent=2))


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 2)


if __name__ == "__main__":
    main()
