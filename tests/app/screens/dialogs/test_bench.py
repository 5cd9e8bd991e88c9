"""The model of a chat is measured beside the others, and the figures can be read and copied."""

from dataclasses import replace

from app.bench.measure import SLACK
from app.bench.short import NEW
from app.screens.dialogs.models.bench import BenchScreen
from app.terminal.clipboard import CopyResult
from engine import FinishReason, Priority
from tests.app.driving import chat, ready, say, wait_until
from tests.support.fakes import FakeInfo

PARTS = (1, 4, 1, 1, 4)
"""Rows of each part where four fit: warming up twice, reading, writing with one, with four."""


async def measuring(pilot, engine):
    """Begin, with memory for four rows beside what runs; the rows wait for their tokens."""
    row = (NEW + SLACK + engine.base.block_size) * FakeInfo.kv_bytes_per_token
    engine.base = replace(engine.base, kv_bytes_total=engine.stats().kv_bytes_used + 4 * row)
    await say(pilot, "/bench")
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, BenchScreen))
    await wait_until(pilot, lambda: own_rows(engine))
    return pilot.app.screen


def own_rows(engine):
    return [g for g in engine.generations if g.request.label.startswith("measuring")]


async def compute(pilot, engine):
    """Give the rows of every part their tokens, once all of them listen."""
    done = 0
    for count in PARTS:
        await wait_until(pilot, lambda upto=done + count: len(own_rows(engine)) == upto)
        rows = own_rows(engine)[done:]
        await wait_until(pilot, lambda rows=rows: all(row._listener is not None for row in rows))
        for _ in range(2):
            for row in rows:
                row.feed("word ")
        for row in rows:
            row.finish(FinishReason.LENGTH)
        done += count


def shown(view, name="#doing"):
    return str(view.query_one(name).content)


async def test_the_figures_of_a_quiet_engine_are_shown_and_copied(make_app, engine):
    copied = []
    app = make_app(copy=lambda text, write: copied.append(text) or CopyResult(True, "copied"))
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        view = await measuring(pilot, engine)
        assert "Warming up…\nNo other chat" in shown(view)
        await compute(pilot, engine)
        await wait_until(pilot, lambda: view.figures)
        for expected in ("Q4_K_M", "reading 512 tokens", "1 answer", "4 answers", "No other answer"):
            assert expected in shown(view)
        assert {row.request.priority for row in own_rows(engine)} == {Priority.LOW}
        await pilot.press("c")
        await wait_until(pilot, lambda: copied == [view.figures])


async def test_it_says_that_other_chats_were_busy_and_they_go_on(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await say(pilot, "Tell me")
        await wait_until(pilot, lambda: engine.generations)
        await pilot.press("ctrl+t")
        await ready(pilot)
        view = await measuring(pilot, engine)
        await wait_until(pilot, lambda: "1 other answer is computed" in shown(view))
        engine.generations[0].feed("It goes on.")
        first = screen.tabs.sessions[0].conversation
        await wait_until(pilot, lambda: first.last_answer().text == "It goes on.")
        engine.generations[0].finish()
        await compute(pilot, engine)
        await wait_until(pilot, lambda: view.figures)
        assert "1 other answer was computed meanwhile: these are the figures of a shared" in view.figures


async def test_escape_ends_its_rows(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await measuring(pilot, engine)
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is screen)
        await wait_until(pilot, lambda: all(row.finished is not None for row in engine.generations))
        await wait_until(pilot, lambda: not [w for w in app.workers if w.group == "bench" and w.is_running])
        assert len(engine.generations) == 1, "nothing more is measured"


async def test_what_cannot_be_measured_says_why_and_can_be_tried_again(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        engine.refuse = "the model was unloaded"
        await say(pilot, "/bench")
        await wait_until(pilot, lambda: isinstance(app.screen, BenchScreen))
        await wait_until(pilot, lambda: "the model was unloaded" in shown(app.screen))
        assert "Enter measures again" in shown(app.screen, ".foot")
        engine.refuse = None
        await pilot.press("enter")
        await wait_until(pilot, lambda: own_rows(engine))


async def test_a_model_that_is_still_opened_is_not_measured(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        screen.active.models.current = None
        await say(pilot, "/bench")
        await wait_until(pilot, lambda: app._notifications)
        assert "No model is open" in [n.message for n in app._notifications][-1]
        assert chat(app) is app.screen
