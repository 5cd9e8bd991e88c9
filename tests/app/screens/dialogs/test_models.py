"""Opening, switching and failing to open models."""

import threading
from pathlib import Path

from app.models.listed.listing import ModelFile
from app.screens.dialogs.models.model_picker import ModelPicker
from tests.app.driving import plain, ready, say, wait_until

SMALL = ModelFile(Path("/m/small-q4.gguf"), "small-q4", 400_000_000, "Q4_K_M", 8192)
LARGE = ModelFile(Path("/m/large-q8.gguf"), "large-q8", 9_000_000_000, "Q8_0", 32768, caution="needs 70 GB")
BAD = ModelFile(Path("/m/odd.gguf"), "odd", 1, "F16", 1, problem="architecture odd is not supported")


async def open_picker(pilot) -> ModelPicker:
    await pilot.press("ctrl+o")
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, ModelPicker))
    picker = pilot.app.screen
    await wait_until(pilot, lambda: picker.query_one("#models").option_count == 3)
    return picker


def models(folders):
    return [SMALL, LARGE, BAD]


async def test_the_picker_filters_and_opens_in_place(make_app, engine):
    app = make_app(find_models=models)
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        picker = await open_picker(pilot)
        await pilot.press(*"lrg")
        await wait_until(pilot, lambda: picker.query_one("#models").option_count == 1)
        await pilot.press("enter")
        await wait_until(pilot, lambda: screen.active.model.path == LARGE.path)
        assert screen.active.conversation.model_path == str(LARGE.path)


async def test_unsupported_files_are_listed_with_the_reason_and_not_opened(make_app):
    app = make_app(find_models=models)
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        picker = await open_picker(pilot)
        await pilot.press("down", "down", "enter")
        await pilot.pause()
        assert app.screen is picker
        assert "not supported" in str(picker.query_one("#foot").content)
        await pilot.press("escape")
        assert app.screen is not picker


async def test_a_typed_path_is_looked_at(make_app, tmp_path):
    app = make_app(find_models=models)
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        picker = await open_picker(pilot)
        picker.query_one("Input").value = str(tmp_path / "none.gguf")
        await wait_until(pilot, lambda: picker.query_one("#models").option_count == 1)
        assert "does not exist" in picker._shown[0].problem


async def test_switching_keeps_the_conversation_and_others_go_on(make_app, engine):
    app = make_app(find_models=models)
    gate = engine.load_gates[SMALL.path.name] = threading.Event()
    async with app.run_test(size=(130, 30)) as pilot:
        screen = await ready(pilot)
        await say(pilot, "question")
        await wait_until(pilot, lambda: engine.generations)
        engine.generations[0].feed("answer")
        engine.generations[0].finish()
        await wait_until(pilot, lambda: not screen.active.busy)
        await pilot.press("ctrl+t")
        await ready(pilot)
        await say(pilot, "other")
        await wait_until(pilot, lambda: len(engine.generations) == 2)
        other = screen.active
        await pilot.press("alt+1")
        old = screen.active.model
        await open_picker(pilot)
        await pilot.press("enter")
        await wait_until(pilot, lambda: "50%" in plain(screen.query_one("#notices")))
        assert "Opening small-q4" in plain(screen.query_one("#notices"))
        engine.generations[1].feed("goes on")
        await wait_until(pilot, lambda: other.conversation.last_answer().text == "goes on")
        gate.set()
        await wait_until(pilot, lambda: screen.active.model is not old)
        assert [n.text for n in screen.active.conversation.path()] == ["question", "answer"]
        assert not old.local.unloaded
        await say(pilot, "again")
        await wait_until(pilot, lambda: len(engine.generations) == 3)
        _, kept = screen.active.model.local.template.calls[-1]
        assert kept == {}


async def test_a_message_sent_while_loading_is_sent_when_it_is_there(make_app, engine):
    gate = threading.Event()
    engine.load_gates["pocket-46m-q5_k_s.gguf"] = gate
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        await wait_until(pilot, lambda: app.chat_screen and app.chat_screen.tabs.sessions)
        screen = app.chat_screen
        await wait_until(pilot, lambda: screen.active.models.loading_path)
        await say(pilot, "early")
        gate.set()
        await wait_until(pilot, lambda: engine.generations)


async def test_cancelling_a_load_keeps_the_old_model(make_app, engine):
    app = make_app(find_models=models)
    engine.load_gates[SMALL.path.name] = threading.Event()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        old = screen.active.model
        await open_picker(pilot)
        await pilot.press("enter")
        await wait_until(pilot, lambda: screen.active.models.progress[0] == 0.5)
        await pilot.press("escape")
        assert screen.active.models.loading_path is None and screen.active.model is old
        screen.active.open_model(LARGE.path)
        await wait_until(pilot, lambda: screen.active.model.path == LARGE.path)
        assert SMALL.path.stem not in [model.name for model in engine.models]


async def test_a_failed_load_keeps_the_old_model_and_says_why(make_app, engine):
    app = make_app(find_models=models)
    engine.failures[SMALL.path.name] = "small-q4.gguf: tensor blk.0 lies outside the file"
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        old = screen.active.model
        await open_picker(pilot)
        await pilot.press("enter")
        await wait_until(pilot, lambda: any("outside the file" in n.message for n in app._notifications))
        assert screen.active.model is old and screen.active.conversation.model_path == str(old.path)


async def test_without_any_model_the_message_stays_with_its_writer(make_app, engine):
    engine.failures["pocket-46m-q5_k_s.gguf"] = "the file is broken"
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        await wait_until(pilot, lambda: app.chat_screen and app.chat_screen.tabs.sessions)
        screen = app.chat_screen
        await wait_until(pilot, lambda: screen.active.models.error)
        await say(pilot, "hello?")
        await wait_until(pilot, lambda: screen.composer.text == "hello?")
        assert "the file is broken" in plain(screen.query_one("#notices"))


async def test_models_no_tab_uses_are_unloaded_but_for_the_last(make_app, engine):
    app = make_app(find_models=models)
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        first = screen.active.model
        screen.active.open_model(SMALL.path)
        await wait_until(pilot, lambda: screen.active.model.path == SMALL.path)
        second = screen.active.model
        screen.active.open_model(LARGE.path)
        await wait_until(pilot, lambda: screen.active.model.path == LARGE.path and first.local.unloaded)
        assert not second.local.unloaded


async def test_template_warnings_are_shown(make_app, engine):
    engine.warnings["pocket-46m-q5_k_s.gguf"] = "The chat template fails; a default is used."
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await wait_until(pilot, lambda: "default is used" in plain(screen.query_one("#notices")))
        assert not app._notifications


async def ask(pilot, engine, question):
    asked = len(engine.generations)
    await say(pilot, question)
    await wait_until(pilot, lambda: len(engine.generations) > asked)
    engine.generations[-1].finish()
    await wait_until(pilot, lambda: not pilot.app.chat_screen.active.busy)


async def test_a_template_that_fails_for_a_prompt_is_said_for_as_long_as_it_does(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        notices = screen.query_one("#notices")
        screen.active.model.local.template.failed = "The chat template failed; ChatML was used."
        for number in (1, 2):
            await ask(pilot, engine, f"question {number}")
            await wait_until(pilot, lambda: "ChatML was used" in plain(notices))
        assert sum("ChatML was used" in n.message for n in app._notifications) == 1
        screen.active.model.local.template.failed = None
        await ask(pilot, engine, "question 3")
        await wait_until(pilot, lambda: "ChatML" not in plain(notices))


async def test_an_engine_that_cannot_start_is_said(make_app, engine):
    app = make_app()

    def broken():
        raise OSError("libtorch is missing")

    app._factory = broken
    async with app.run_test(size=(100, 30)) as pilot:
        await wait_until(
            pilot,
            lambda: app.chat_screen and app.chat_screen.tabs.sessions and app.chat_screen.active.models.error,
        )
        assert "libtorch is missing" in app.chat_screen.active.models.error
