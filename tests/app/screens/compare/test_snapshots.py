"""What answers beside each other look like; after an intended change run it once with `--snapshot-update`."""

import pytest

from app.screens.compare.alternatives import AlternativesView
from app.screens.compare.column import AnswerColumn
from app.settings.file import GeneralSettings, Settings
from tests.app.driving import ready, say, shown_answer, wait_until
from tests.app.screens.compare.test_two_chats import compared

LONG = """A **tern** is a slender seabird, related to gulls.

- long, pointed wings
- dives for small fish
"""
TEXTS = (LONG, "Terns are seabirds. They dive for small fish and nest on beaches.", "A tern is", "")


@pytest.mark.parametrize(
    ("theme", "size"), [("ink", (80, 24)), ("linen", (120, 30)), ("moss", (60, 15))], ids=str
)
def test_answers_side_by_side(snap_compare, make_app, engine, theme, size):
    app = make_app(Settings(general=GeneralSettings(theme=theme)))

    async def run(pilot):
        screen = await ready(pilot)
        await say(pilot, "/fan temperature 0.2 0.7 1.2 1.6: What is a tern?")
        await wait_until(pilot, lambda: isinstance(app.screen, AlternativesView))
        view = app.screen
        await wait_until(pilot, lambda: engine.generations)
        engine.generations[0].feed(TEXTS[0])
        await wait_until(pilot, lambda: len(screen.active.running) == 4)
        for generation, text in zip(engine.generations[1:3], TEXTS[1:3], strict=True):
            generation.feed(text)
        engine.generations[1].finish()
        await wait_until(
            pilot, lambda: tuple(shown_answer(c.transcript) for c in view.query(AnswerColumn)) == TEXTS
        )
        await wait_until(pilot, lambda: len(screen.active.running) == 3)
        await pilot.press("right")
        view.draw()
        await pilot.pause()

    assert snap_compare(app, run_before=run, terminal_size=size)


def test_the_difference_of_two_answers(snap_compare, make_app, engine):
    app = make_app()

    async def run(pilot):
        view = await compared(pilot, engine)
        await pilot.press("left", "1", "d")
        await wait_until(pilot, lambda: all(c.has_class("-different") for c in view.query(AnswerColumn)))
        await pilot.pause()

    assert snap_compare(app, run_before=run, terminal_size=(80, 24))
