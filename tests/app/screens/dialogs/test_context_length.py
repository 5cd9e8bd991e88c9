"""How long chats may become is chosen on a slider that says what it costs."""

import pytest

from app.models.builtin import builtin_model_path
from app.models.found import ModelSearch
from app.models.listed.listing import ModelFile, read_model
from app.models.listed.notes import ModelNotes
from app.screens.dialogs.context_full import ContextFull
from app.screens.dialogs.models.context_length import ContextFacts, ContextLength, cost_text, steps_to
from app.screens.dialogs.models.model_picker import ModelPicker
from app.screens.dialogs.models.slider import THUMB, Slider
from app.settings.paths import locations
from tests.app.driving import plain, ready, say, wait_until

FACTS = ContextFacts("Tern", 2048, 8192, 4_000_000, lambda tokens: tokens * 1000)


def shown(view):
    return str(view.query_one("#cost").content)


async def opened(pilot):
    await say(pilot, "/context")
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, ContextLength))
    return pilot.app.screen


def test_the_cost_is_said_and_what_memory_does_not_hold():
    assert FACTS.fits == 4000
    assert "2 MB of the 4 MB of context memory: one such chat fits" in str(cost_text(FACTS, 2001))
    assert "4 such chats fit" in str(cost_text(FACTS, 1000))
    assert "which holds 4,000 tokens: more is not read" in str(cost_text(FACTS, 8192))
    long = ContextFacts("Tern", 2048, 8192, 4_000_000, lambda tokens: tokens * 1000, longest_chat=1500)
    assert "A chat here has 1,500 tokens" in str(cost_text(long, 1024))


def test_steps_end_with_all_of_it():
    assert steps_to(2000) == [256, 384, 512, 768, 1024, 1536, 2000]
    assert steps_to(100) == [100]


async def test_keys_figures_and_the_mouse_choose(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        view = await opened(pilot)
        assert view.tokens == 2048 and plain(view.query_one(Slider)).endswith(THUMB)
        await pilot.press("left", "left")
        assert view.tokens == 1024 and "1,024 tokens of 2,048" in shown(view)
        await pilot.press("1", "3", "0", "5", "backspace", "0")
        assert view.tokens == 1300
        await pilot.click(Slider, offset=(0, 0))
        await wait_until(pilot, lambda: view.tokens == 256)
        await pilot.press("6", "0", "0", "enter")
        model = screen.active.model.local
        await wait_until(pilot, lambda: model.context_length == 600)
        await wait_until(pilot, lambda: ModelNotes(locations().notes_file).context_of(model.path) == 600)
        await wait_until(pilot, lambda: "600 tokens" in [n.message for n in app._notifications][-1])


async def test_what_was_chosen_is_there_after_a_restart_and_all_again_on_request(make_app, engine):
    for written, expected in (("/context 1,024", 1024), ("", 1024), ("/context all", 2048), ("", 2048)):
        app = make_app()
        async with app.run_test(size=(100, 30)) as pilot:
            screen = await ready(pilot)
            model = screen.active.model.local
            if written:
                await say(pilot, written)
            await wait_until(pilot, lambda model=model, tokens=expected: model.context_length == tokens)
        engine.models.clear()


@pytest.mark.parametrize("written", ["/context many", "/context 9999", "/context 3"])
async def test_what_cannot_be_chosen_says_so_and_stays_written(make_app, engine, written):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await say(pilot, written)
        await wait_until(pilot, lambda: screen.composer.text == written)
        assert "/context" in [n.message for n in app._notifications][-1]
        assert screen.active.model.local.context_length == 2048


async def test_a_full_context_leads_there_and_what_waits_is_sent_then(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await say(pilot, "/context 256")
        await wait_until(pilot, lambda: screen.active.model.local.context_length == 256)
        await say(pilot, "first")
        await wait_until(pilot, lambda: engine.generations)
        engine.generations[0].feed("answer")
        engine.generations[0].finish()
        await wait_until(pilot, lambda: not screen.active.busy)
        await say(pilot, "word " * 300)
        await wait_until(pilot, lambda: isinstance(app.screen, ContextFull))
        await pilot.press("end", "enter")
        await wait_until(pilot, lambda: isinstance(app.screen, ContextLength))
        await pilot.press("end", "enter")
        await wait_until(pilot, lambda: len(engine.generations) == 2)


async def test_it_is_chosen_in_the_list_before_the_model_is_loaded(make_app, engine, tmp_path):
    other = tmp_path / "other.gguf"
    other.symlink_to(builtin_model_path())
    app = make_app(find_models=lambda search: [read_model(other, ModelSearch())])
    async with app.run_test(size=(130, 40)) as pilot:
        screen = await ready(pilot)
        await pilot.press("ctrl+o")
        await wait_until(pilot, lambda: isinstance(app.screen, ModelPicker))
        picker = app.screen
        await wait_until(pilot, lambda: isinstance(picker._row, ModelFile))
        await pilot.press("ctrl+t")
        await wait_until(pilot, lambda: isinstance(app.screen, ContextLength))
        view = app.screen
        assert view.tokens == 2048 and "such chats fit" in shown(view)
        assert ModelNotes(locations().notes_file).context_of(other) is None
        await pilot.press("home", "enter")
        card = picker.query_one("#card")
        await wait_until(pilot, lambda: "256 of 2,048 tokens, as chosen" in str(card.content))
        await pilot.press("enter")
        await wait_until(pilot, lambda: screen.active.model is not None and screen.active.model.path == other)
        assert screen.active.model.local.context_length == 256
        await pilot.press("ctrl+o")
        await wait_until(pilot, lambda: isinstance(app.screen, ModelPicker))
        await wait_until(pilot, lambda: isinstance(app.screen._row, ModelFile))
        await pilot.press("ctrl+t")
        await wait_until(
            pilot, lambda: "/context chooses there" in [n.message for n in app._notifications][-1]
        )
