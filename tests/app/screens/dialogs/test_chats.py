"""The list of all chats: opening one whose tab was closed, searching, deleting."""

import time

import pytest
from textual.widgets import Static

from app.chat.conversation import Conversation
from app.history.store import HistoryStore
from app.screens.chat import kept_chats
from app.screens.dialogs.chats import ChatsScreen
from app.screens.dialogs.export import ExportScreen
from app.screens.dialogs.tags import TagsScreen
from app.settings.file import Settings
from tests.app.driving import ready, shown_answer, wait_until
from tests.app.screens.chat.test_answers import ask, texts


def talk(title: str, *messages: str, age: float = 0.0) -> Conversation:
    conversation = Conversation(title=title)
    for question, answer in zip(messages[::2], messages[1::2], strict=True):
        conversation.add_user(question)
        node = conversation.begin_answer("m")
        conversation.append(node.id, answer, [1])
        conversation.finish(node.id)
    conversation.updated = time.time() - age
    return conversation


async def listed(pilot, key: str = "ctrl+l") -> ChatsScreen:
    await pilot.press(key)
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, ChatsScreen))
    await wait_until(pilot, lambda: not pilot.app.screen._looking)
    return pilot.app.screen


def titles(screen: ChatsScreen) -> list[str]:
    return [str(option.prompt).splitlines()[0][:24].strip() for option in screen.query_one("#chats").options]


async def search(pilot, text: str) -> None:
    screen = pilot.app.screen
    screen.query_one("Input").value = text
    asked = screen._asked
    await wait_until(pilot, lambda: screen._asked > asked and not screen._looking)


async def test_a_closed_chat_is_listed_and_goes_on_in_a_new_tab(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "first question", "first answer")
        closed = screen.active.conversation.id
        screen.active.conversation.max_tokens = 7
        screen.active.settings_changed()
        await pilot.press("ctrl+t")
        await ready(pilot)
        await ask(pilot, engine, "second question", "second answer")
        await pilot.press("alt+1", "alt+w")
        await wait_until(pilot, lambda: len(screen.tabs.sessions) == 1)
        assert any("Ctrl+L lists all chats" in n.message for n in app._notifications)
        chats = await listed(pilot)
        assert titles(chats) == ["● second question", "first question"]
        await pilot.press("down", "enter")
        await wait_until(pilot, lambda: len(screen.tabs.sessions) == 2)
        await ready(pilot)
        assert screen.active is screen.tabs.sessions[1]
        assert screen.active.conversation.id == closed
        assert screen.active.model is screen.tabs.sessions[0].model
        await wait_until(pilot, lambda: shown_answer(screen.deck.transcript) == "first answer")
        await ask(pilot, engine, "and then?", "third answer")
        assert texts(screen) == ["first question", "first answer", "and then?", "third answer"]
        assert engine.generations[-1].request.max_tokens == 7
        chats = await listed(pilot)
        assert titles(chats) == ["● first question", "● second question"]
        await pilot.press("down", "enter")
        await wait_until(pilot, lambda: screen.active is screen.tabs.sessions[0])
        assert len(screen.tabs.sessions) == 2


async def test_typing_searches_titles_and_messages_and_enter_waits_for_what_is_found(make_app):
    app = make_app(Settings(keys={"chats": "f10"}))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        chats = await listed(pilot, "f10")
        assert "No chat is kept yet" in str(chats.query_one("#nothing").render())
        await pilot.press("escape")
        history = app.context.history
        history.save(talk("Birds", "what is a tern", f"{'Well, ' * 30}the arctic tern [b]flies far", age=90))
        history.save(talk("Arctic fish", "what is a cod", "a fish", age=7000))
        history.save(talk("Gone", "model?", "yes", age=90_000))
        chats = await listed(pilot, "f10")
        assert titles(chats) == ["Birds", "Arctic fish", "Gone"]
        await search(pilot, "arctic")
        assert titles(chats) == ["Birds", "Arctic fish"]
        snippet = str(chats.query_one("#chats").options[0].prompt).splitlines()[1]
        assert "the arctic tern [b]flies" in snippet
        await search(pilot, "whale")
        assert "holds “whale”" in str(chats.query_one("#nothing").render())
        await search(pilot, "")
        chats.query_one("Input").value = "cod"
        await pilot.press("enter")
        await wait_until(pilot, lambda: len(screen.tabs.sessions) == 2)
        assert screen.active.conversation.title == "Arctic fish"


async def test_a_long_list_is_drawn_as_far_as_it_is_scrolled(make_app):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        for number in range(120):
            app.context.history.save(talk(f"Chat {number:03}", "q", "a", age=number))
        chats = await listed(pilot)
        options = chats.query_one("#chats")
        assert options.option_count < 60
        await pilot.press(*["pagedown"] * 20)
        await wait_until(pilot, lambda: options.option_count == 120)
        await wait_until(pilot, lambda: options.highlighted == 119)
        assert titles(chats)[119] == "Chat 119"


async def test_delete_closes_the_tab_and_a_key_brings_both_back(make_app, engine):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "first question")
        deleted = screen.active.conversation.id
        app.context.history.save(talk("Birds", "what is a tern", "a bird", age=90))
        chats = await listed(pilot)
        await pilot.press("delete")
        await wait_until(pilot, lambda: titles(chats) == ["Birds"])
        assert engine.generations[0].finished
        assert [session.conversation.title for session in screen.tabs.sessions] == ["New chat"]
        assert any("Alt+U brings it back" in n.message for n in app._notifications)
        assert app.context.history.load(deleted) is None
        await pilot.press("delete")
        await wait_until(pilot, lambda: titles(chats) == [])
        await pilot.press("alt+u")
        await wait_until(pilot, lambda: titles(chats) == ["Birds"])
        await pilot.press("escape", "alt+u")
        await wait_until(pilot, lambda: screen.active.conversation.id == deleted)
        assert screen.active.conversation.path()[0].text == "first question"
        await pilot.press("alt+u")
        await wait_until(pilot, lambda: any("no deleted chat" in n.message for n in app._notifications))


async def test_a_deleted_chat_is_gone_for_good_after_the_time_to_undo(make_app, monkeypatch):
    monkeypatch.setattr(kept_chats, "UNDO_SECONDS", 0.01)
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        birds = talk("Birds", "what is a tern", "a bird")
        app.context.history.save(birds)
        chats = await listed(pilot)
        await pilot.press("delete")
        await wait_until(pilot, lambda: titles(chats) == [])
        await wait_until(pilot, lambda: not screen._deleted)
        await wait_until(pilot, lambda: app.context.history.summary(birds.id) is None)


async def test_a_chat_that_another_window_shows_is_not_deleted(make_app):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        history = app.context.history
        other = HistoryStore(history.path)
        birds = talk("Birds", "what is a tern", "a bird")
        other.save(birds)
        other.save_tabs([birds.id], birds.id)
        assert other.flush()
        chats = await listed(pilot)
        await pilot.press("delete")
        await wait_until(
            pilot, lambda: any("open in another window" in n.message for n in app._notifications)
        )
        assert titles(chats) == ["Birds"]
        other.close()
        await pilot.press("delete")
        await wait_until(pilot, lambda: titles(chats) == [])


async def test_chats_are_pinned_archived_and_tagged_in_the_list(make_app):
    app = make_app()
    async with app.run_test(size=(100, 24)) as pilot:
        await ready(pilot)
        for age, title in enumerate(["Birds", "Fish", "Foxes"]):
            app.context.history.save(talk(title, "q", "a", age=age))
        chats = await listed(pilot)
        await pilot.press("down", "down", "ctrl+f")
        await wait_until(pilot, lambda: titles(chats) == ["★ Foxes", "Birds", "Fish"])
        await pilot.press("down", "ctrl+a")
        await wait_until(pilot, lambda: titles(chats) == ["★ Foxes", "Fish"])
        await pilot.press("ctrl+t")
        await wait_until(pilot, lambda: isinstance(app.screen, TagsScreen))
        await pilot.press(*"#red wild", "enter")
        await wait_until(pilot, lambda: titles(chats)[:1] == ["★ Foxes #red #wild"])
        await search(pilot, "#wi")
        assert titles(chats) == ["★ Foxes #red #wild"]
        await search(pilot, "#archived")
        assert titles(chats) == ["Birds"]
        await pilot.press("ctrl+a")
        await wait_until(pilot, lambda: titles(chats) == [])
        await search(pilot, "")
        assert titles(chats) == ["★ Foxes #red #wild", "Birds", "Fish"]


@pytest.mark.parametrize("listed_one", [True, False])
async def test_a_chat_is_exported_and_the_place_is_said(make_app, engine, listed_one):
    app = make_app()
    async with app.run_test(size=(100, 24)) as pilot:
        await ready(pilot)
        await ask(pilot, engine, "first question", "first answer")
        if listed_one:
            await listed(pilot)
        await pilot.press("ctrl+e" if listed_one else "alt+x")
        await wait_until(pilot, lambda: isinstance(app.screen, ExportScreen))
        await pilot.press("enter")
        await wait_until(pilot, lambda: any("Written to" in n.message for n in app._notifications))
        [path] = app.places.exports.iterdir()
        assert "first answer" in path.read_text() and path.suffix == ".md"


async def test_a_chat_whose_model_is_gone_says_what_it_goes_on_with(make_app):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        old = talk("Old", "q", "a")
        old.model_path = "/gone/qwen3.gguf"
        app.context.history.save(old)
        await listed(pilot)
        await pilot.press("enter")
        await wait_until(pilot, lambda: len(screen.tabs.sessions) == 2)
        assert any("qwen3 is not there any more" in n.message for n in app._notifications)


@pytest.mark.parametrize("closed", [True, False])
async def test_a_chat_that_was_searched_opens_at_the_hit_which_is_marked(make_app, engine, closed):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        for number in range(9):
            word = "where the Tern nests" if number == 3 else "nothing"
            await ask(pilot, engine, f"question {number}", f"line\n\n{word}\n\n" + "line\n\n" * 20)
        if closed:
            await screen.close(screen.active)
        await listed(pilot)
        await search(pilot, "tern nes")
        await pilot.press("enter")
        await wait_until(pilot, lambda: screen.deck.transcript and screen.get_selected_text() == "Tern")
        transcript = screen.deck.transcript
        shown = [transcript.render_line(y) for y in range(transcript.size.height)]
        [at] = [y for y, strip in enumerate(shown) if "Tern nests" in strip.text]
        assert at == 3 and not transcript.follow
        grounds = {segment.text: segment.style.bgcolor for segment in shown[at]}
        assert grounds["Tern"] != grounds[" nests"]


async def test_a_hit_on_another_branch_is_shown(make_app, engine):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        await ask(pilot, engine, "question", "about terns")
        await pilot.press("ctrl+r")
        await wait_until(pilot, lambda: len(engine.generations) == 2)
        engine.generations[1].feed("about foxes")
        engine.generations[1].finish()
        await wait_until(pilot, lambda: not screen.active.busy)
        await listed(pilot)
        await search(pilot, "terns")
        await pilot.press("enter")
        await wait_until(pilot, lambda: shown_answer(screen.deck.transcript) == "about terns")
        await wait_until(pilot, lambda: screen.get_selected_text() == "terns")


async def test_a_small_terminal_shows_titles_in_place_of_models_and_every_key(make_app, engine):
    app = make_app()
    async with app.run_test(size=(60, 15)) as pilot:
        await ready(pilot)
        await ask(pilot, engine, "What is a tern, and how fast does it dive?", "A bird.")
        chats = await listed(pilot)
        foot = chats.query_one("#foot", Static)
        await wait_until(pilot, lambda: "Esc leaves" in str(foot.content))
        await wait_until(pilot, lambda: foot.region.bottom < 15 and foot.region.height >= 3)
        columns = str(chats.query_one("#columns", Static).content)
        assert "Model" not in columns and "Messages" in columns
