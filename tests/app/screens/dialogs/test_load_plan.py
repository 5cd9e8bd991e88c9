"""Memory is short for a tab's model: who makes room is shown, and nothing happens before it is agreed to."""

import pytest

from app.chat.events import TabState
from app.models.builtin import model_title
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
        assert shown == "Pocket 46M pauses (88 MB), about 2 s."
        assert not engine.aside and screen.active.model is before
        await pilot.press("enter")
        await wait_until(pilot, lambda: screen.active.model.path == SMALL.path)
        assert engine.aside == {before.local.id: False}
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


async def message_when_short(pilot, engine):
    """A second tab's model took the place of the first one's, whose chat is asked something."""
    screen = await ready(pilot)
    await pilot.press("ctrl+t")
    await ready(pilot)
    screen.tabs.sessions[1].open_model(SMALL.path)
    await wait_until(pilot, lambda: screen.tabs.sessions[1].model.path == SMALL.path)
    engine.fits = 1
    paused = screen.tabs.sessions[0].model
    screen.tabs.sessions[0].models.put_aside(unload=False)
    await wait_until(pilot, lambda: engine.aside == {paused.local.id: False})
    await pilot.press("alt+1")
    await say(pilot, "question")
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, LoadPlanScreen))
    return screen


async def test_a_message_to_a_paused_model_asks_who_makes_room_and_is_sent_then(make_app, engine):
    app = make_app(find_models=models)
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await message_when_short(pilot, engine)
        shown = str(app.screen.query_one("#plan").content)
        assert shown.startswith(f"{model_title(SMALL.path)} pauses")
        assert not engine.generations and screen.active.state is TabState.LOADING
        await pilot.press("enter")
        await wait_until(pilot, lambda: engine.generations)
        first, second = (session.model for session in screen.tabs.sessions)
        assert engine.aside == {second.local.id: False} and engine.generations[0].model is first.local
        assert [node.text for node in screen.active.conversation.path()] == ["question", ""]


@pytest.mark.parametrize("how", ["escape", "no room", "stop"])
async def test_a_message_to_a_model_that_stays_paused_stands_in_the_composer_again(make_app, engine, how):
    app = make_app(find_models=models)
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await message_when_short(pilot, engine)
        session, aside = screen.active, dict(engine.aside)
        if how == "escape":
            await pilot.press("escape")
        elif how == "stop":
            session.stop()
        else:
            engine.refusals[session.model.name] = "its weights need 90 GiB"
            await pilot.press("enter")
        await wait_until(pilot, lambda: screen.composer.draft.text == "question")
        assert not session.busy and not session.models.loading
        assert not engine.generations and engine.aside == aside
        said = [one.message for one in app._notifications if "goes on with" in one.message]
        assert not said


@pytest.mark.parametrize(("title", "unload"), [("Pause model", False), ("Unload model", True)])
async def test_a_model_is_put_aside_by_hand(make_app, engine, title, unload):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        command = next(one for one in app.get_system_commands(screen) if one.title == title)
        command.callback()
        await wait_until(pilot, lambda: engine.aside == {screen.active.model.local.id: unload})
        await wait_until(pilot, lambda: any("brings it back" in one.message for one in app._notifications))
        engine.answering = {screen.active.model.local.id}
        command.callback()
        await wait_until(pilot, lambda: any("it is answering" in one.message for one in app._notifications))
