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
    recommended = [
        entry("general.sampling.temp", 6, 0.6),
        entry("general.sampling.top_k", 5, 20),
        entry("tui_chat.sampling.max_tokens", 4, 200),
    ]
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
    return (await asked_for(pilot, engine)).sampling


async def asked_for(pilot, engine):
    asked = len(engine.generations)
    await say(pilot, "question")
    await wait_until(pilot, lambda: len(engine.generations) > asked)
    engine.generations[-1].finish()
    await wait_until(pilot, lambda: not pilot.app.chat_screen.active.busy)
    return engine.generations[-1].request


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


async def test_the_longest_answer_is_as_recommended_until_the_reader_writes_another(make_app, engine, model):
    app = make_app(model=model)
    async with app.run_test(size=(100, 40)) as pilot:
        screen = await ready(pilot)
        assert (await asked_for(pilot, engine)).max_tokens == 200
        for written, kept, used, shown_next in (
            ("500", 500, 500, "500"),
            ("0", None, None, "0"),
            ("", None, 200, "200"),
        ):
            dialog = await opened(pilot)
            dialog.query_one("#max_tokens", Input).value = written
            await save(pilot, dialog)
            assert screen.active.conversation.max_tokens == kept
            assert (await asked_for(pilot, engine)).max_tokens == used
            dialog = await opened(pilot)
            assert value(dialog, "max_tokens") == shown_next
            await save(pilot, dialog)
            assert (await asked_for(pilot, engine)).max_tokens == used


async def test_a_limit_of_before_is_the_readers_own(make_app, engine, model):
    app = make_app(model=model)
    async with app.run_test(size=(100, 40)) as pilot:
        screen = await ready(pilot)
        screen.active.conversation.max_tokens = 300
        dialog = await opened(pilot)
        assert value(dialog, "max_tokens") == "300"
        assert "empty: 200, from the file" in shown(dialog.query_one("#hint_max_tokens"))
        await save(pilot, dialog)
        assert (await asked_for(pilot, engine)).max_tokens == 300


async def test_a_limit_below_nothing_is_refused(make_app, engine, model):
    app = make_app(model=model)
    async with app.run_test(size=(100, 40)) as pilot:
        await ready(pilot)
        dialog = await opened(pilot)
        dialog.query_one("#max_tokens", Input).value = "-1"
        await pilot.press("ctrl+s")
        await wait_until(pilot, lambda: "0 for no limit" in shown(dialog.query_one("#problem")))


async def test_settings_without_a_limit_come_before_the_file(make_app, engine, model):
    mine = replace(SamplingSettings(max_tokens=0), chosen=frozenset({"max_tokens"}))
    app = make_app(Settings(sampling=mine), model=model)
    async with app.run_test(size=(100, 40)) as pilot:
        await ready(pilot)
        assert (await asked_for(pilot, engine)).max_tokens is None
