"""Two chats turn by turn: aligned, asked together, compared word by word, voted on."""

from app.chat.conversation import MessageNode, Role
from app.chat.votes import Vote, vote, vote_on
from app.screens.compare.column import AnswerColumn
from app.screens.compare.two_chats import CompareView
from app.screens.compare.word_diff import shared_part, word_diff
from app.widgets.lines import LineWidget
from tests.app.driving import plain, ready, say, shown_answer, wait_until
from tests.app.screens.chat.test_answers import ask


def shown(view: CompareView) -> list[str]:
    return [shown_answer(column.transcript) for column in view.query(AnswerColumn)]


def line(view: CompareView, name: str) -> str:
    return plain(view.query_one(f"#{name}", LineWidget))


async def compared(pilot, engine) -> CompareView:
    """Two tabs, the first with two turns, compared from the second."""
    await ready(pilot)
    await ask(pilot, engine, "What is a tern?", "A slender seabird.")
    await ask(pilot, engine, "And a gull?", "A stout one.")
    await pilot.press("ctrl+t")
    await ready(pilot)
    await ask(pilot, engine, "What is a tern?", "A seabird of pole and beach.")
    await say(pilot, "/compare 1")
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, CompareView))
    return pilot.app.screen


async def test_turns_stand_beside_each_other(make_app, engine):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        view = await compared(pilot, engine)
        await wait_until(pilot, lambda: "Turn 2 of 2" in line(view, "head"))
        await wait_until(pilot, lambda: shown(view) == ["", "A stout one."])
        await pilot.press("left")
        await wait_until(pilot, lambda: shown(view) == ["A seabird of pole and beach.", "A slender seabird."])
        assert "What is a tern?" in line(view, "question")
        assert "tok/s" in plain(view.query(".cost").first(LineWidget))
        await pilot.press("2")
        await wait_until(pilot, lambda: "2: 1" in line(view, "head"))
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is app.chat_screen)
        await pilot.press("alt+1", "alt+v")
        await wait_until(pilot, lambda: isinstance(app.screen, CompareView))
        again = app.screen
        await wait_until(pilot, lambda: "1: 1" in line(again, "head"))


async def test_the_difference_is_shown_and_goes_again(make_app, engine):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        view = await compared(pilot, engine)
        await pilot.press("left", "d")
        columns = list(view.query(AnswerColumn))
        await wait_until(pilot, lambda: all(column.has_class("-different") for column in columns))
        text = columns[1].query_one(".difference Static").visual.plain
        assert text.endswith("A slender seabird.")
        await pilot.press("d")
        await wait_until(pilot, lambda: not any(column.has_class("-different") for column in columns))


async def test_both_are_asked_with_one_message(make_app, engine):
    app = make_app()
    async with app.run_test(size=(60, 15)) as pilot:
        view = await compared(pilot, engine)
        await pilot.press("a", *"Why 1d", "enter")
        await wait_until(pilot, lambda: len(engine.generations) == 5)
        await wait_until(pilot, lambda: len([s for s in app.chat_screen.tabs.sessions if s.running]) == 2)
        for session in app.chat_screen.tabs.sessions:
            assert session.conversation.last_user().text == "Why 1d"
        for generation in engine.generations[3:]:
            generation.feed("Because.")
        await pilot.press("end")
        await wait_until(pilot, lambda: "Turn 3 of 3" in line(view, "head"))
        await wait_until(pilot, lambda: shown(view)[1] == "Because.")


async def test_with_another_model_a_fork_opens_beside_the_chat(make_app, engine, tmp_path):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "question", "answer")
        other = tmp_path / "other.gguf"
        other.write_bytes(b"GGUF")
        await say(pilot, f"/compare model {other}")
        await wait_until(pilot, lambda: isinstance(app.screen, CompareView))
        await wait_until(pilot, lambda: screen.tabs.sessions[1].model is not None)
        assert screen.tabs.sessions[1].model.path == other
        await wait_until(pilot, lambda: shown(app.screen) == ["answer", "answer"])


async def test_what_is_no_other_tab_is_said(make_app, engine):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        for command, said in (
            ("/compare", "There is one tab only"),
            ("/compare apples", "'apples' is not known"),
            ("/compare model", "write a model's name"),
        ):
            await say(pilot, command)
            await wait_until(pilot, lambda said=said: any(said in n.message for n in app._notifications))
            screen.composer.put("")
        assert app.screen is screen


def test_words_are_compared_and_white_space_is_kept():
    left, right = word_diff("A tern  is\na bird.", "A tern was\na bird!")
    assert "".join(text for text, _ in left) == "A tern  is\na bird."
    assert "".join(text for text, _ in right) == "A tern was\na bird!"
    assert [text.strip() for text, same in right if not same] == ["was", "!"]
    assert word_diff("", "new") == ([], [("new", False)])
    assert shared_part(left) < 1 and shared_part([]) == 1


def test_a_vote_is_the_same_from_both_sides_and_is_taken_back():
    a, b = (MessageNode(name, None, Role.ASSISTANT) for name in "ab")
    vote(b, a, Vote.BETTER)
    assert (vote_on(b, a), vote_on(a, b)) == (Vote.BETTER, Vote.WORSE)
    vote(a, b, Vote.EVEN)
    assert vote_on(b, a) is Vote.EVEN
    # One of them was written over with what another file has of it.
    a.votes = {}
    assert vote_on(a, b) is Vote.EVEN
    vote(b, a, Vote.EVEN)
    assert vote_on(a, b) is vote_on(b, a) is None and not b.votes


async def test_votes_are_there_again_after_a_restart(make_app, engine):
    app = make_app()
    async with app.run_test(size=(120, 30)) as pilot:
        view = await compared(pilot, engine)
        await wait_until(pilot, lambda: "Turn 2 of 2" in line(view, "head"))
        await pilot.press("left", "1")
        await wait_until(pilot, lambda: "votes 1: 1  2: 0" in line(view, "head"))
    app.end_services()
    again = make_app()
    async with again.run_test(size=(120, 30)) as pilot:
        screen = await ready(pilot)
        for other, tally in (("1", "votes 1: 1  2: 0"), ("2", "votes 1: 0  2: 1")):
            await say(pilot, f"/compare {other}")
            await wait_until(pilot, lambda: isinstance(again.screen, CompareView))
            await wait_until(pilot, lambda tally=tally: tally in line(again.screen, "head"))
            # From the side of the other chat its answer is the worse one.
            await pilot.press("escape")
            await wait_until(pilot, lambda: again.screen is screen and not screen.deck.covered)
            await pilot.press("ctrl+pageup")
    again.end_services()
