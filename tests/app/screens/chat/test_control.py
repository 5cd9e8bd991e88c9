"""Focus, pause and priority: what the reader does reaches the engine, once, and is shown."""

from app.chat.answering import running
from app.chat.conversation import Status
from app.chat.events import TabState
from app.chat.pauses import Pauses
from app.screens.dialogs.confirm import ConfirmScreen
from app.screens.dialogs.tab_settings import TabSettings
from engine import FinishReason, Priority, SequenceState
from tests.app.driving import bar_text, footer_of, plain, ready, say, say_to_a_slow_template, wait_until
from tests.app.screens.chat.test_answers import ask, texts


def watch_focus(engine, monkeypatch) -> list[int | None]:
    asked: list[int | None] = []
    original = engine.focus

    def focus(sequence_id):
        asked.append(sequence_id)
        original(sequence_id)

    monkeypatch.setattr(engine, "focus", focus)
    return asked


async def two_answers(pilot, engine):
    screen = await ready(pilot)
    await ask(pilot, engine, "one")
    await pilot.press("ctrl+t")
    await ready(pilot)
    await ask(pilot, engine, "two")
    return screen


async def test_the_answer_that_is_looked_at_has_the_focus_with_one_call_a_change(
    make_app, engine, monkeypatch
):
    asked = watch_focus(engine, monkeypatch)
    app = make_app()
    async with app.run_test(size=(130, 30)) as pilot:
        screen = await two_answers(pilot, engine)
        await wait_until(pilot, lambda: asked == [1, None, 2])
        await pilot.press("alt+1")
        await wait_until(pilot, lambda: asked[3:] == [1])
        for _ in range(5):
            for generation in engine.generations:
                generation.feed("word ")
            await wait_until(pilot, lambda: not any(g._events for g in engine.generations))
        assert asked == [1, None, 2, 1]
        engine.generations[0].finish()
        await wait_until(pilot, lambda: asked[4:] == [None])
        await pilot.press("alt+2")
        await wait_until(pilot, lambda: asked[5:] == [2])
        await pilot.press("alt+w")
        await wait_until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.click("#yes")
        await wait_until(pilot, lambda: len(screen.tabs.sessions) == 1)
        assert asked[6:] == [None]


async def test_a_key_pauses_an_answer_and_lets_it_go_on(make_app, engine, short_beats):
    app = make_app()
    async with app.run_test(size=(130, 30)) as pilot:
        screen = await ready(pilot)
        generation = await ask(pilot, engine, "long")
        generation.feed("some words")
        notices, status, panel = (screen.query_one(f"#{name}") for name in ("notices", "status", "panel"))
        await wait_until(pilot, lambda: screen.active.state is TabState.GENERATING)
        await wait_until(pilot, lambda: "F5 Pause" in plain(status))
        await pilot.press("f5")
        assert generation.held and screen.active.state is TabState.PAUSED
        await wait_until(pilot, lambda: "Paused. F5 goes on, Esc stops the answer here." in plain(notices))
        await wait_until(pilot, lambda: "‖" in bar_text(app))
        await wait_until(pilot, lambda: "F5 Go on" in plain(status) and "paused" in plain(status))
        await wait_until(pilot, lambda: "you paused it" in plain(panel))
        await wait_until(pilot, lambda: not screen.beat._timer._active.is_set())
        await pilot.press("f5")
        assert not generation.held
        await wait_until(pilot, lambda: "Paused" not in plain(notices) and "‖" not in bar_text(app))
        generation.feed(" more")
        generation.finish()
        await wait_until(pilot, lambda: texts(screen) == ["long", "some words more"])
        await pilot.press("f5")
        await wait_until(
            pilot, lambda: "There is no answer to pause." in [n.message for n in app._notifications]
        )


async def test_an_answer_that_the_engine_paused_says_why_and_goes_on_by_itself(make_app, engine):
    app = make_app()
    async with app.run_test(size=(140, 30)) as pilot:
        screen = await ready(pilot)
        generation = await ask(pilot, engine, "one")
        generation.feed("some words")
        generation.state = SequenceState.PAUSED
        generation.note = "paused: the context memory is full"
        notices, panel = screen.query_one("#notices"), screen.query_one("#panel")
        sentence = "Paused: the context memory is full; this answer goes on by itself."
        await wait_until(pilot, lambda: sentence in plain(notices))
        await wait_until(pilot, lambda: "paused: the context memory is full" in plain(panel))
        assert screen.active.state is TabState.QUEUED and not screen.active.paused
        generation.note = ""
        generation.feed(" more")
        await wait_until(pilot, lambda: "Paused" not in plain(notices))
        await wait_until(pilot, lambda: screen.active.state is TabState.GENERATING)


async def test_what_is_written_while_paused_waits_its_turn(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        first = await ask(pilot, engine, "one")
        await pilot.press("f5")
        await say(pilot, "two")
        await wait_until(pilot, lambda: "Waits its turn: two" in plain(screen.query_one("#notices")))
        await pilot.press("f5")
        first.finish()
        await wait_until(pilot, lambda: len(engine.generations) == 2)
        assert not engine.generations[1].held and not screen.active.paused


async def test_a_paused_answer_is_stopped_and_its_tab_closed(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await two_answers(pilot, engine)
        engine.generations[1].feed("half")
        await wait_until(pilot, lambda: texts(screen) == ["two", "half"])
        await pilot.press("f5", "escape")
        await wait_until(pilot, lambda: screen.active.state is TabState.IDLE)
        assert engine.generations[1].finished.reason is FinishReason.CANCELLED
        assert texts(screen) == ["two", "half"]
        await pilot.press("alt+1")
        await pilot.press("f5", "alt+w")
        await wait_until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.click("#yes")
        await wait_until(pilot, lambda: len(screen.tabs.sessions) == 1)
        assert engine.generations[0].finished.reason is FinishReason.CANCELLED


async def test_a_pause_before_the_prompt_is_encoded_holds_the_answer_from_its_start(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        gate = await say_to_a_slow_template(pilot)
        await pilot.press("f5")
        gate.set()
        await wait_until(pilot, lambda: engine.generations and engine.generations[0].held)
        assert screen.active.state is TabState.PAUSED


async def test_leaving_keeps_a_paused_answer(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        generation = await ask(pilot, engine, "long")
        generation.feed("the beginning")
        await wait_until(pilot, lambda: texts(screen) == ["long", "the beginning"])
        await pilot.press("f5", "ctrl+q")
    app.end_services()
    again = make_app()
    async with again.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        assert texts(screen) == ["long", "the beginning"]
        assert screen.active.conversation.last_answer().status is Status.STOPPED
        assert screen.active.state is TabState.IDLE
    again.end_services()


async def test_the_settings_fit_a_small_terminal(make_app):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        await pilot.press("f8")
        await wait_until(pilot, lambda: isinstance(app.screen, TabSettings))
        await wait_until(pilot, lambda: app.screen.query_one("#save").region.height == 1)
        for name in ("system", "temperature", "priority", "problem", "save"):
            assert app.screen.query_one(f"#{name}") in app.screen._compositor.visible_widgets, name


async def test_a_priority_is_used_at_once_at_submit_and_after_a_restart(make_app, engine):
    app = make_app()
    async with app.run_test(size=(130, 30)) as pilot:
        screen = await ready(pilot)
        running = await ask(pilot, engine, "one")
        await pilot.press("f8")
        await wait_until(pilot, lambda: isinstance(app.screen, TabSettings))
        field = app.screen.query_one("#priority")
        assert field.value == "normal"
        field.value = "urgent"
        await pilot.press("f8")
        assert "'urgent' is not one of low, normal, high" in str(app.screen.query_one("#problem").content)
        assert running.priority is Priority.NORMAL
        field.value = "High"
        await pilot.press("f8")
        await wait_until(pilot, lambda: running.priority is Priority.HIGH)
        panel = screen.query_one("#panel")
        await wait_until(pilot, lambda: "high  " in plain(panel))
        running.finish()
        await wait_until(pilot, lambda: not screen.active.busy)
        second = await ask(pilot, engine, "two")
        assert second.request.priority is Priority.HIGH
        commands = {command.title: command for command in app.get_system_commands(screen)}
        assert "as it is now" in commands["Priority high"].help
        commands["Priority low"].callback()
        assert second.priority is Priority.LOW
        await wait_until(pilot, lambda: "low  " in plain(panel))
    app.end_services()
    again = make_app()
    async with again.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        assert screen.active.conversation.priority is Priority.LOW
    again.end_services()


async def test_a_pause_of_the_reader_does_not_slow_an_answer_down(make_app, engine, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(running, "Pauses", lambda: Pauses(lambda: now[0]))
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await say(pilot, "question")
        await wait_until(pilot, lambda: engine.generations)
        engine.generations[0].feed("word " * 31)
        await wait_until(pilot, lambda: screen.active.conversation.last_answer().token_ids)
        await pilot.press("f5")
        await wait_until(pilot, lambda: screen.active.paused)
        now[0] = 0.5
        await pilot.press("f5")
        await wait_until(pilot, lambda: not screen.active.paused)
        engine.generations[0].finish()
        await wait_until(pilot, lambda: not screen.active.busy)
        # 30 tokens a second over a second, half of which was the pause.
        assert "60 tok/s" in footer_of(screen.active, screen.active.conversation.leaf)
