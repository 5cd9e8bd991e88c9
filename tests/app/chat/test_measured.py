"""What is remembered of an answer that has ended."""

import pytest

from app.chat.conversation import AnswerStats
from app.chat.measured import Measured
from app.models.fit.speeds import SpeedStore
from app.models.listed.notes import ModelNotes
from app.settings.paths import locations
from engine import Finished, FinishReason
from tests.app.driving import ready, say, wait_until
from tests.support.fakes import STATS

MODEL = "/m/tern.gguf"


def finished(reason=FinishReason.STOP):
    return Finished(reason, None, 500, 0, 40, 0.0, 1000.0, 20.0)


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.CANCELLED, FinishReason.LENGTH])
def test_speed_and_use_are_kept(home, reason):
    measured = Measured(locations(), lambda: STATS)
    measured.note(MODEL, finished(reason), AnswerStats(40, 25.0))
    measured.close()
    ((path, speed),) = SpeedStore(locations().speeds_file).all().items()
    assert (str(path), speed.tok_s, speed.read_tok_s, speed.device) == (MODEL, 25.0, 500.0, "cpu")
    assert path in ModelNotes(locations().notes_file).read().used


@pytest.mark.parametrize(
    ("model", "reason", "stats"),
    [(None, FinishReason.STOP, STATS), (MODEL, FinishReason.ERROR, STATS), (MODEL, FinishReason.STOP, None)],
)
def test_what_says_nothing_is_not_kept(home, model, reason, stats):
    measured = Measured(locations(), lambda: stats)
    measured.note(model, finished(reason), AnswerStats(40, 25.0))
    measured.close()
    assert not locations().speeds_file.exists() and not locations().notes_file.exists()


async def test_an_answer_of_the_app_is_measured(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await say(pilot, "question")
        await wait_until(pilot, lambda: engine.generations)
        engine.generations[0].feed("a " * 50)
        engine.generations[0].finish()
        await wait_until(pilot, lambda: not screen.active.busy)
        path = screen.active.model.path
        store = SpeedStore(locations().speeds_file)
        await wait_until(pilot, lambda: path in store.all())
        assert store.all()[path].tok_s == 30.0
        assert path in ModelNotes(locations().notes_file).read().used
