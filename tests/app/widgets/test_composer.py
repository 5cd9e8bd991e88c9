"""The composer: keys, growth, recall, big pastes."""

from textual import events

from app.chat.draft import Draft
from tests.app.driving import ready, say, wait_until

NOTHING_TO_OPEN = "There is no chip in the message to open, and nothing selected to fold."


async def test_newline_keys_and_a_trailing_backslash(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await pilot.press("a", "ctrl+j", "b", "shift+enter", "c", "alt+enter", "d", "backslash", "enter", "e")
        assert screen.composer.text == "a\nb\nc\nd\ne"
        assert not engine.generations
        await pilot.press("enter")
        await wait_until(pilot, lambda: engine.generations)
        assert screen.active.conversation.last_user().text == "a\nb\nc\nd\ne"
        assert screen.composer.text == ""


async def test_enter_without_text_sends_nothing(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await pilot.press("space", "enter")
        await pilot.pause()
        assert not screen.active.busy and not engine.generations


async def test_it_grows_to_ten_lines(make_app):
    app = make_app()
    async with app.run_test(size=(100, 40)) as pilot:
        screen = await ready(pilot)
        heights = []
        for _ in range(14):
            heights.append(screen.composer.content_size.height)
            screen.composer.insert("x\n")
            await pilot.pause()
        assert heights[0] == 1 and heights[3] == 4
        assert max(heights) == screen.composer.content_size.height == 10


async def test_it_shrinks_when_the_terminal_is_made_wider(make_app):
    app = make_app()
    async with app.run_test(size=(20, 30)) as pilot:
        screen = await ready(pilot)
        screen.composer.insert("six words that fit in here")
        await wait_until(pilot, lambda: screen.composer.content_size.height == 2)
        await pilot.resize_terminal(80, 30)
        await wait_until(pilot, lambda: screen.composer.content_size.height == 1)


async def test_up_and_down_recall_what_was_sent_and_bring_the_draft_back(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        for number, text in enumerate(("one", "two"), 1):
            await say(pilot, text)
            await wait_until(pilot, lambda n=number: len(engine.generations) == n)
            engine.generations[-1].finish()
            await wait_until(pilot, lambda: not screen.active.busy)
        screen.composer.insert("new")
        await pilot.press("up")
        assert screen.composer.text == "two"
        await pilot.press("up", "up")
        assert screen.composer.text == "one"
        await pilot.press("down", "down")
        assert screen.composer.text == "new"


async def recall_over_a_draft(pilot, engine):
    """Ask once, begin a message and recall the first."""
    screen = await ready(pilot)
    await say(pilot, "one")
    await wait_until(pilot, lambda: engine.generations)
    screen.composer.insert("half a thought")
    await pilot.press("up")
    assert screen.composer.text == "one"
    return screen


async def test_what_was_begun_before_an_earlier_message_is_recalled_stays_saved(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await recall_over_a_draft(pilot, engine)
        screen.keep_draft()
        assert screen.active.conversation.draft == "half a thought"
        await pilot.press("!")
        screen.keep_draft()
        assert screen.active.conversation.draft == "half a thought\n\none!"


async def test_what_was_begun_comes_back_after_a_recalled_message_is_sent(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await recall_over_a_draft(pilot, engine)
        engine.generations[-1].finish()
        await wait_until(pilot, lambda: not screen.active.busy)
        assert screen.composer.text == "one", "an answer that ends changes nothing here"
        await pilot.press("enter")
        await wait_until(pilot, lambda: len(engine.generations) == 2)
        assert screen.composer.text == screen.active.conversation.draft == "half a thought"


async def test_what_was_begun_is_shown_when_its_tab_is_shown_again(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await recall_over_a_draft(pilot, engine)
        await pilot.press("ctrl+t")
        await ready(pilot)
        await pilot.press("alt+1")
        await wait_until(pilot, lambda: screen.composer.text == "half a thought")


async def test_another_branch_without_the_recalled_message_brings_back_what_was_begun(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await recall_over_a_draft(pilot, engine)
        screen.composer.set_past(["another"])
        assert screen.composer.text == "half a thought"
        await pilot.press("up")
        assert screen.composer.text == "another"


async def test_a_megabyte_paste_folds_and_is_sent_whole(make_app, engine):
    app = make_app()
    engine.context_length = 10_000_000
    text = "".join(f"line {number} of the paste\n" for number in range(45_000))
    assert len(text) > 1_000_000
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        screen.composer.post_message(events.Paste(text))
        await wait_until(pilot, lambda: screen.composer.text)
        assert screen.composer.text == "[pasted #1: 45,001 lines]"
        screen.composer.insert(" what is this?")
        await pilot.press("enter")
        await wait_until(pilot, lambda: engine.generations)
        assert screen.active.conversation.last_user().text == text + " what is this?"


async def test_a_chip_that_was_edited_is_plain_text(make_app):
    pasted = "x\n" * 50
    assert Draft("a [pasted #1: 51 lines] b", {1: pasted}).expanded == f"a {pasted} b"
    assert Draft("a [pasted #1: 51 line b", {1: pasted}).expanded == "a [pasted #1: 51 line b"
    assert Draft("[pasted #2: 51 lines]", {1: pasted}).expanded == "[pasted #2: 51 lines]"
    assert Draft.folded(pasted) == Draft(pasted)
    assert Draft.folded(pasted * 1000).expanded == pasted * 1000


LONG = "a line of a long message\n" * 60


async def test_a_long_message_that_is_edited_or_recalled_is_shown_as_it_is(make_app, engine):
    engine.context_length = 1_000_000
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await say(pilot, LONG)
        await wait_until(pilot, lambda: engine.generations)
        engine.generations[0].finish()
        await wait_until(pilot, lambda: not screen.active.busy)
        await pilot.press("f4")
        assert screen.composer.text == LONG
        await pilot.press("escape", "up")
        await wait_until(pilot, lambda: screen.composer.text == LONG)
        await pilot.press("!", "ctrl+t")
        await wait_until(pilot, lambda: screen.composer.text == "")
        await pilot.press("alt+1")
        await wait_until(pilot, lambda: screen.composer.text == LONG + "!")
    app.end_services()
    again = make_app()
    async with again.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await pilot.press("alt+1")
        await wait_until(pilot, lambda: screen.composer.text == LONG + "!")
    again.end_services()


async def test_a_chip_opens_the_one_at_the_cursor_first(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        composer = screen.composer
        await pilot.press("ctrl+g")
        assert [n.message for n in app._notifications] == [NOTHING_TO_OPEN]
        composer.paste(LONG)
        composer.insert(" and ")
        composer.paste("y" * 4000)
        assert composer.text == "[pasted #1: 61 lines] and [pasted #2: 4,000 characters]"
        await pilot.press("ctrl+g")
        assert composer.text == f"[pasted #1: 61 lines] and {'y' * 4000}"
        await pilot.press("!", "ctrl+g")
        assert composer.text == f"{LONG} and {'y' * 4000}!"
        assert not composer.draft.chip_at(0)


async def test_small_pastes_go_in_as_they_are(make_app):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        screen.composer.post_message(events.Paste("two\r\nlines"))
        await wait_until(pilot, lambda: screen.composer.text == "two\nlines")


async def test_action_keys_reach_the_screen_though_the_composer_has_the_focus(make_app):
    app = make_app()
    async with app.run_test(size=(130, 30)) as pilot:
        screen = await ready(pilot)
        screen.composer.insert("text")
        shown = screen.query_one("#panel").display
        await pilot.press("f3")
        assert screen.query_one("#panel").display is not shown
        await pilot.press("ctrl+t")
        assert len(screen.tabs.sessions) == 2
        await pilot.press("alt+w")
        await wait_until(pilot, lambda: len(screen.tabs.sessions) == 1)
        await pilot.press("f1")
        await wait_until(pilot, lambda: type(app.screen).__name__ == "HelpScreen")
        await pilot.press("escape")
        assert screen.composer.text == "text"
