"""Memory is short for a tab's model: who makes room is shown, and nothing happens before it is agreed to."""

import pytest

from app.chat.events import TabState
from app.screens.dialogs.models.load_plan import LoadPlanScreen
from tests.app.driving import ready, say, wait_until
from tests.app.screens.dialogs.test_models import SMALL, models, open_picker


async def switch_when_short(pilot, engine):
    """Another tab's chat, then this one's switch to a model for which there is no room."""
    screen = await ready(pilot)
    await say(pilot, "question")
    await wait_until(pilot, lambda: engine.generations)
    engine.generations[0].feed("answer")
    engine.generations[0].finish()
    await wait_until(pilot, lambda: not screen.active.busy)
    engine.fits = 1
    await open_picker(pilot)
    await pilot.press("enter")
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, LoadPlanScreen))
    return screen


async def test_the_plan_is_one_sentence_and_enter_follows_it(make_app, engine):
    app = make_app(find_models=models)
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await switch_when_short(pilot, engine)
        before = screen.active.model
        shown = str(app.screen.query_one("#plan").content)
        assert shown == "Pocket 44M pauses (88 MB), about 2 s."
        assert not engine.aside and screen.active.model is before
        await pilot.press("enter")
        await wait_until(pilot, lambda: screen.active.model.path == SMALL.path)
        assert engine.aside == {before.id: False}
        assert [node.role for node in screen.active.conversation.path()] == ["user", "assistant"]


async def test_escape_leaves_everything_as_it_is(make_app, engine):
    app = make_app(find_models=models)
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await switch_when_short(pilot, engine)
        before = screen.active.model
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is screen)
        assert not screen.active.models.loading and screen.active.model is before and not engine.aside
        await say(pilot, "more")
        await wait_until(pilot, lambda: len(engine.generations) == 2)


async def test_a_tab_that_is_not_in_front_asks_when_it_comes_there(make_app, engine):
    app = make_app(find_models=models)
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        first = screen.active
        await pilot.press("ctrl+t")
        await ready(pilot)
        engine.fits = 1
        first.open_model(SMALL.path)
        await wait_until(pilot, lambda: first.models.asked is not None)
        assert app.screen is screen and first.state is TabState.LOADING
        await pilot.press("alt+1")
        await wait_until(pilot, lambda: isinstance(app.screen, LoadPlanScreen))
        await pilot.press("enter")
        await wait_until(pilot, lambda: first.model.path == SMALL.path)
        assert app.screen is screen and first.models.asked is None


@pytest.mark.parametrize(("title", "unload"), [("Pause model", False), ("Unload model", True)])
async def test_a_model_is_put_aside_by_hand(make_app, engine, title, unload):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        command = next(one for one in app.get_system_commands(screen) if one.title == title)
        command.callback()
        await wait_until(pilot, lambda: engine.aside == {screen.active.model.id: unload})
        await wait_until(pilot, lambda: any("brings it back" in one.message for one in app._notifications))
        engine.answering = {screen.active.model.id}
        command.callback()
        await wait_until(pilot, lambda: any("it is answering" in one.message for one in app._notifications))
