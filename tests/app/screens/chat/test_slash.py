"""Slash commands: the list over the composer, actions and prompts by name, messages that begin with /."""

from app.settings.actions import ACTIONS
from tests.app.driving import ready, say, wait_until


def offered(screen):
    return [choice.name for choice in screen.composer.completions._choices]


def toasts(app):
    return [note.message for note in app._notifications]


async def begin(pilot, text):
    """Write a text and wait until the list is made for it."""
    composer = pilot.app.chat_screen.composer
    composer.focus()
    composer.insert(text)
    await wait_until(pilot, lambda: composer.completions.made_for == composer.state)


def keep_prompt(home, name, text):
    folder = home / "config" / "prompts"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(text)


async def test_a_slash_offers_every_action_and_letters_find_one(make_app):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await begin(pilot, "/")
        assert set(offered(screen)) == {f"/{action.id}" for action in ACTIONS}
        await begin(pilot, "newt")
        assert offered(screen)[0] == "/new_tab"
        await pilot.press("enter")
        await wait_until(pilot, lambda: len(screen.tabs.sessions) == 2)
        assert screen.composer.text == "" and not screen.composer.completions.chosen
        assert all(not session.conversation.draft for session in screen.tabs.sessions)


async def test_every_action_can_be_called(make_app):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        assert all(hasattr(screen, f"action_{action.id}") for action in ACTIONS)


async def test_enter_runs_a_name_that_was_typed_faster_than_the_list_is_made(make_app):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        screen.composer.focus()
        await pilot.press(*"/helq", "backspace", "p", "enter")
        await wait_until(pilot, lambda: app.screen is not screen)


async def test_arrows_move_tab_completes_and_escape_closes_the_list(make_app):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await begin(pilot, "/")
        second = offered(screen)[1]
        await pilot.press("down", "tab")
        await wait_until(pilot, lambda: screen.composer.text == second)
        await pilot.press("escape")
        await wait_until(pilot, lambda: not screen.composer.completions.chosen)
        assert screen.composer.text == second and not screen.composer.completions.display


async def test_an_unknown_command_says_so_and_loses_nothing(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await say(pilot, "/xyzzy and more")
        await wait_until(pilot, lambda: any("no command /xyzzy" in text for text in toasts(app)))
        await pilot.press("ctrl+a", "ctrl+k")
        await say(pilot, "/help me please")
        await wait_until(pilot, lambda: any("/help takes nothing" in text for text in toasts(app)))
        assert screen.composer.text == "/help me please" and not engine.generations


async def test_messages_that_begin_with_a_slash_can_be_sent_and_recalled(make_app, engine):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        for number, (written, sent) in enumerate(
            [("//help", "/help"), ("/etc/passwd is?", "/etc/passwd is?"), (" /help", " /help")], 1
        ):
            await say(pilot, written)
            await wait_until(pilot, lambda n=number: len(engine.generations) == n)
            assert screen.active.conversation.last_user().text == sent
            engine.generations[-1].finish()
            await wait_until(pilot, lambda: not screen.active.busy)
        await pilot.press("up", "up", "up")
        assert screen.composer.text == "//help"
        await pilot.press("enter")
        await wait_until(pilot, lambda: len(engine.generations) == 4)
        assert screen.active.conversation.last_user().text == "/help"


async def test_a_prompt_is_put_in_and_its_places_are_filled_one_after_another(make_app, home):
    keep_prompt(home, "translate", "# Into another language\nInto {{language}}:\n{{text}}")
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await begin(pilot, "/tra")
        await wait_until(pilot, lambda: offered(screen)[:1] == ["/translate"])
        await pilot.press("enter")
        await wait_until(pilot, lambda: screen.composer.selected_text == "{{language}}")
        await pilot.press(*"Dutch", "tab")
        assert screen.composer.selected_text == "{{text}}"
        await pilot.press("x", "tab")
        assert screen.composer.text == "Into Dutch:\nx"


async def test_what_stands_behind_a_prompts_name_fills_it(make_app, home):
    keep_prompt(home, "short", "Shorten: {{text}}")
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        await begin(pilot, "/sh")
        await wait_until(pilot, lambda: offered(screen)[:1] == ["/short"])
        await pilot.press("tab", *"abc", "enter")
        await wait_until(pilot, lambda: screen.composer.text == "Shorten: abc")
        await pilot.press("ctrl+underscore")
        await wait_until(pilot, lambda: screen.composer.text == "/short abc")


async def test_a_file_that_is_no_prompt_is_named_once(make_app, home):
    keep_prompt(home, "help", "Help me.")
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        for _ in range(2):
            await begin(pilot, "/")
            await wait_until(
                pilot, lambda: any("/help is a command of the app" in text for text in toasts(app))
            )
            screen.composer.put("")
            await wait_until(pilot, lambda: not screen.composer.completions.chosen)
        assert len(toasts(app)) == 1
