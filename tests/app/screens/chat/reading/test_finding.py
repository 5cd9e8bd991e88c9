"""Finding in a chat, going by turns, and unfolding thoughts, as keys and commands do it."""

from textual.widgets import Static

from tests.app.driving import ready, say, wait_until
from tests.app.screens.chat.test_answers import ask, shown_rows

BIRDS = "<think>first a tern\nin thought</think>" + "A tern here.\n\n" + "line\n\n" * 30 + "and **Ter**ns."


async def chat_about_birds(pilot, engine):
    screen = await ready(pilot)
    await ask(pilot, engine, "what is a tern?", BIRDS)
    await ask(pilot, engine, "and a gull?", "Another bird.\n\n" + "row\n\n" * 30)
    return screen


def count(screen) -> str:
    return str(screen.query_one("#find-count", Static).render())


async def test_hits_are_marked_counted_and_gone_to_and_fold_open(make_app, engine):
    app = make_app()
    async with app.run_test(size=(90, 24)) as pilot:
        screen = await chat_about_birds(pilot, engine)
        transcript = screen.deck.transcript
        await pilot.press("ctrl+f", *"tern")
        await wait_until(pilot, lambda: count(screen) == "4 of 4")
        assert "and Terns." in shown_rows(transcript) and not transcript.follow
        await pilot.press("enter")
        await wait_until(pilot, lambda: count(screen) == "1 of 4")
        assert "what is a tern?" in shown_rows(transcript)
        await pilot.press("down")
        await wait_until(pilot, lambda: count(screen) == "2 of 4")
        assert "first a tern" in shown_rows(transcript)
        await pilot.press("up", "up")
        await wait_until(pilot, lambda: count(screen) == "4 of 4")
        marks = [
            (item.rows[row].text[start:end], kind)
            for item in transcript._column.items
            for row in range(len(item.rows))
            for start, end, kind in transcript._marks(item, row)
        ]
        assert marks == [("tern", "hit")] * 3 + [("Tern", "hithere")]
        await pilot.press("escape")
        await wait_until(pilot, lambda: not screen.find_bar.shown)
        assert screen.composer.has_focus and not any(
            transcript._marks(item, row) for item in transcript._column.items for row in range(len(item.rows))
        )


async def test_a_command_finds_and_what_comes_is_counted_too(make_app, engine):
    app = make_app()
    async with app.run_test(size=(90, 24)) as pilot:
        screen = await ready(pilot)
        await say(pilot, "/find gull")
        await wait_until(pilot, lambda: any("nothing to read" in n.message for n in app._notifications))
        assert screen.composer.text == "/find gull"
        screen.composer.put("")
        await ask(pilot, engine, "what is a gull?", "A bird.")
        await say(pilot, "/find gull")
        await wait_until(pilot, lambda: count(screen) == "1 of 1")
        screen.active.send("go on")
        await wait_until(pilot, lambda: len(engine.generations) == 2 and screen.active.sequence_id)
        engine.generations[-1].feed("Gulls and gulls.")
        engine.generations[-1].finish()
        await wait_until(pilot, lambda: count(screen) == "1 of 3")
        await pilot.press("ctrl+a", "x", "y", "z")
        await wait_until(pilot, lambda: count(screen) == "nothing found")


async def test_another_chat_in_front_ends_the_search(make_app, engine):
    app = make_app()
    async with app.run_test(size=(90, 24)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "a gull?", "A bird.")
        await pilot.press("ctrl+f", *"gull")
        await wait_until(pilot, lambda: count(screen) == "1 of 1")
        await pilot.press("ctrl+t")
        await wait_until(pilot, lambda: len(screen.tabs.sessions) == 2 and not screen.find_bar.shown)
        await wait_until(pilot, lambda: screen.composer.has_focus)


async def test_keys_and_commands_go_from_question_to_question(make_app, engine):
    app = make_app()
    async with app.run_test(size=(90, 24)) as pilot:
        screen = await chat_about_birds(pilot, engine)
        await ask(pilot, engine, "a third?", "Short.")
        transcript = screen.deck.transcript

        def first_row():
            return shown_rows(transcript).splitlines()[1].strip(" ▌")

        await pilot.press("alt+up")
        assert transcript._turn[0] == screen.active.conversation.last_user().id
        await pilot.press("alt+up")
        await wait_until(pilot, lambda: first_row() == "and a gull?")
        await say(pilot, "/previous_turn")
        await wait_until(pilot, lambda: first_row() == "what is a tern?")
        await pilot.press("alt+up")
        await wait_until(pilot, lambda: any("no question before" in n.message for n in app._notifications))
        transcript.scroll_relative(y=12, animate=False)
        await pilot.pause()
        await pilot.press("alt+up")
        await wait_until(pilot, lambda: first_row() == "what is a tern?")
        await pilot.press("alt+down")
        await wait_until(pilot, lambda: first_row() == "and a gull?")
        await pilot.press("alt+down", "alt+down")
        await wait_until(pilot, lambda: transcript.follow)


async def test_thoughts_say_their_tokens_and_seconds_and_a_key_unfolds_them(make_app, engine):
    app = make_app()
    async with app.run_test(size=(90, 24)) as pilot:
        screen = await ready(pilot)
        generation = await ask(pilot, engine, "think")
        generation.feed("<think>one two")
        transcript = screen.deck.transcript
        await wait_until(pilot, lambda: "one two" in shown_rows(transcript))
        thinking = next(row for row in shown_rows(transcript).splitlines() if "thinking…" in row)
        assert " token" in thinking and "· one two" in thinking
        generation.feed(" three</think>Answer.")
        generation.finish()
        await wait_until(pilot, lambda: not screen.active.busy)
        node = screen.active.conversation.last_answer()
        thought = next(row for row in shown_rows(transcript).splitlines() if "thought" in row)
        assert f"{node.reasoning_tokens} token" in thought and thought.rstrip().endswith("s")
        await pilot.press("alt+o")
        await wait_until(pilot, lambda: "│ one two three" in shown_rows(transcript))
        await pilot.press("alt+o")
        await wait_until(pilot, lambda: "│ one two three" not in shown_rows(transcript))
