"""How the UI answers while many tabs stream: key echo, loop lag, the UI's own processor time.

`python -m tests.perf.ui_latency [--tabs 8] [--tok-s 60] [--seconds 10] [--real] [--json]`. Without
`--real` a thread stands for the engine; with it the built-in model answers in every tab, first inside the
app and then without it (headless), from the same number of tokens on. Bars: key echo p95 ≤ 60 ms; engine
≥ 85 % of its headless speed. `streaming_cpu` is what the UI takes while nobody types.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time

from app.models.builtin import builtin_model_path
from app.settings.file import EngineSettings, GeneralSettings, Settings
from app.settings.paths import HOME_VARIABLE
from app.window.app import ChatApp, engine_factory
from engine.api.request import SamplingParams
from tests.app.driving import ready, say, wait_until
from tests.support.fakes import FakeEngine, Streamer

TEXT = "the quick brown fox **jumps** over `the` lazy dog and\n\n- goes home"
_LOAD_SECONDS = 60
WORDS = [f"{word} " for word in TEXT.split(" ")]


async def measure(factory, tabs: int, seconds: float, size: tuple[int, int] = (140, 40)) -> dict[str, float]:
    # The same words for ever are what a chat would be ended for.
    settings = Settings(general=GeneralSettings(stop_repeats=False))
    app = ChatApp(settings, engine_factory=factory)
    async with app.run_test(size=size) as pilot:
        screen = await ready(pilot, _LOAD_SECONDS)
        for number in range(tabs):
            if number:
                await pilot.press("ctrl+t")
                await ready(pilot)
            screen.active.conversation.sampling = _endless(screen.active.model.local)
            await say(pilot, "Tell me a very long story about a fox.")
        await wait_until(pilot, lambda: all(session.sequence_id for session in screen.tabs.sessions), 30)
        streaming_cpu = await _share(seconds / 2)
        lags: list[float] = []
        echoes: list[float] = []
        watcher = asyncio.create_task(_watch_lag(lags))
        tokens, cpu = _tokens(screen), time.thread_time()
        depth = tokens / tabs
        started = time.perf_counter()
        while time.perf_counter() - started < seconds and all(s.busy for s in screen.tabs.sessions):
            before = len(screen.composer.text)
            pressed = time.perf_counter()
            app.post_message(_key(app))
            while len(screen.composer.text) == before:
                await asyncio.sleep(0.004)
            painted = asyncio.Event()
            screen.composer.call_after_refresh(painted.set)
            await painted.wait()
            echoes.append(1000 * (time.perf_counter() - pressed))
            await asyncio.sleep(0.2)
        elapsed = time.perf_counter() - started
        result = {
            "key_echo_p50_ms": statistics.median(echoes),
            "key_echo_p95_ms": _p95(echoes),
            "loop_lag_p95_ms": _p95(lags),
            "loop_lag_max_ms": max(lags),
            "ui_cpu": (time.thread_time() - cpu) / elapsed,
            "streaming_cpu": streaming_cpu,
            "tok_s": (_tokens(screen) - tokens) / elapsed,
            "depth": depth,
        }
        watcher.cancel()
        screen.composer.clear()
    app.end_services()
    return result


async def _share(seconds: float) -> float:
    """Return the share of the UI thread's time that showing the streams takes while nobody types."""
    cpu, started = time.thread_time(), time.perf_counter()
    await asyncio.sleep(seconds)
    return (time.thread_time() - cpu) / (time.perf_counter() - started)


def headless(tabs: int, seconds: float, depth: float) -> float:
    """Return the engine's total tok/s for the same work without the app, once rows have `depth` tokens."""
    from engine.api.request import Request, TextDelta
    from engine.templates.chat_template import Message

    engine = engine_factory(EngineSettings())()
    model = engine.load(builtin_model_path())
    ids = tuple(model.template.encode([Message("user", "Tell me a very long story about a fox.")], kept={}))
    requests = [model.submit(Request(ids, _endless(model))) for _ in range(tabs)]

    def answered() -> int:
        events = [event for request in requests for event in request.poll()]
        return sum(len(event.token_ids) for event in events if isinstance(event, TextDelta))

    waited = 0
    while waited < depth * tabs and all(r.finished is None for r in requests):
        time.sleep(0.05)
        waited += answered()
    started, tokens = time.perf_counter(), 0
    while time.perf_counter() - started < seconds and all(r.finished is None for r in requests):
        time.sleep(0.05)
        tokens += answered()
    elapsed = time.perf_counter() - started
    engine.close()
    return tokens / elapsed


def _endless(model) -> SamplingParams:
    """Never end by itself: the built-in model's stories are short."""
    return SamplingParams(logit_bias=dict.fromkeys(getattr(model.tokenizer, "eog_ids", ()), -1000000000.0))


def _key(app: ChatApp):
    from textual.events import Key

    key = Key("x", "x")
    key.set_sender(app)
    return key


def _tokens(screen) -> int:
    answers = [session.conversation.last_answer() for session in screen.tabs.sessions]
    return sum(len(answer.token_ids) for answer in answers if answer is not None)


async def _watch_lag(lags: list[float]) -> None:
    while True:
        before = time.perf_counter()
        await asyncio.sleep(0.02)
        lags.append(1000 * (time.perf_counter() - before - 0.02))


def _p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tabs", type=int, default=8)
    parser.add_argument("--tok-s", type=float, default=60)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ[HOME_VARIABLE] = home
        if args.real:
            result = asyncio.run(measure(engine_factory(EngineSettings()), args.tabs, args.seconds))
            alone = headless(args.tabs, args.seconds, result["depth"])
            result |= {"headless_tok_s": alone, "share_of_headless": result["tok_s"] / alone}
        else:
            engine = FakeEngine(context_length=100_000)
            with Streamer(engine, WORDS, args.tok_s, int(args.tok_s * (args.seconds + 60))) as streamer:
                result = asyncio.run(measure(lambda: engine, args.tabs, args.seconds))
                result["fake_engine_ticks"] = streamer.ticks
    if args.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:<20}{value:>10.2f}")


if __name__ == "__main__":
    main()
