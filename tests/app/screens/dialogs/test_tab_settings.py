"""The settings of a chat beside what its model's makers recommend."""

from dataclasses import replace

import pytest
from textual.widgets import Input

from app.screens.dialogs.tab_settings import TabSettings
from app.settings.file import SamplingSettings, Settings
from tests.app.driving import ready, say, wait_until
from tests.support.gguf_bytes import entry, gguf


@pytest.fixture
def model(home):
    path = home / "data" / "models" / "tern.gguf"
    path.parent.mkdir(parents=True)
    recommended = [entry("general.sampling.temp", 6, 0.6), entry("general.sampling.top_k", 5, 20)]
    path.write_bytes(gguf([entry("general.architecture", 8, "llama"), *recommended]))
    return path


def shown(widget):
    return str(widget.content)


async def opened(pilot):
    await pilot.press("f8")
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, TabSettings))
    dialog = pilot.app.screen
    await wait_until(pilot, lambda: "from" in shown(dialog.query_one("#hint_temperature")))
    return dialog


def value(dialog, name):
    return dialog.query_one(f"#{name}", Input).value


async def request(pilot, engine):
    asked = len(engine.generations)
    await say(pilot, "question")
    await wait_until(pilot, lambda: len(engine.generations) > asked)
    engine.generations[-1].finish()
    await wait_until(pilot, lambda: not pilot.app.chat_screen.active.busy)
    return engine.generations[-1].request.sampling


async def save(pilot, dialog):
    await pilot.press("ctrl+s")
    await wait_until(pilot, lambda: pilot.app.screen is not dialog)


async def test_what_is_recommended_is_shown_used_and_not_kept_as_the_readers_own(make_app, engine, model):
    app = make_app(model=model)
    async with app.run_test(size=(100, 40)) as pilot:
        screen = await ready(pilot)
        dialog = await opened(pilot)
        assert (value(dialog, "temperature"), value(dialog, "top_k")) == ("0.6", "20")
        assert "from the file" in shown(dialog.query_one("#hint_top_k"))
        assert value(dialog, "top_p") == "0.95"
        dialog.query_one("#top_p", Input).value = "0.5"
        await save(pilot, dialog)
        conversation = screen.active.conversation
        assert conversation.chosen == {"top_p"} and conversation.sampling.temperature == 0.7
        sampling = await request(pilot, engine)
        assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.6, 20, 0.5)


async def test_a_value_of_the_readers_own_stays_until_it_is_emptied(make_app, engine, model):
    app = make_app(model=model)
    async with app.run_test(size=(100, 40)) as pilot:
        screen = await ready(pilot)
        dialog = await opened(pilot)
        dialog.query_one("#temperature", Input).value = "1.5"
        await save(pilot, dialog)
        assert (await request(pilot, engine)).temperature == 1.5
        dialog = await opened(pilot)
        assert value(dialog, "temperature") == "1.5"
        assert "empty: 0.6, from the file" in shown(dialog.query_one("#hint_temperature"))
        dialog.query_one("#temperature", Input).value = ""
        await save(pilot, dialog)
        assert not screen.active.conversation.chosen
        assert screen.active.conversation.sampling.temperature == 0.7
        assert (await request(pilot, engine)).temperature == 0.6


async def test_a_setting_of_the_readers_own_comes_before_the_file(make_app, engine, model):
    mine = replace(SamplingSettings(temperature=0.7), chosen=frozenset({"temperature"}))
    app = make_app(Settings(sampling=mine), model=model)
    async with app.run_test(size=(100, 40)) as pilot:
        await ready(pilot)
        sampling = await request(pilot, engine)
        assert (sampling.temperature, sampling.top_k) == (0.7, 20)
