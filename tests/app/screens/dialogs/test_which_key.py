"""The leader key: every action by two letters, and no action without them."""

import pytest

from app.screens.dialogs.which_key import WhichKey
from app.settings.actions import ACTIONS, GROUPS, LEADER, action_letters, group_letters, letters, ways
from app.settings.keys import checked_keys, wrong_keys
from app.widgets.pick_list import PickList
from tests.app.driving import ready, wait_until


def test_every_action_has_letters_of_its_own():
    reached = [action for group in group_letters().values() for action in action_letters(group).values()]
    assert {action.id for action in reached} == {action.id for action in ACTIONS} - {LEADER}
    assert list(group_letters().values()) == list(GROUPS)
    for action in ACTIONS:
        assert f"/{action.id}" in ways(action, {})


def test_letters_stay_when_titles_are_added():
    before = letters(["New chat", "Next chat", "Nothing"])
    assert before == ["n", "c", "o"]
    assert letters(["New chat", "Next chat", "Nothing", "Nnn"])[:3] == before
    assert len(set(letters(["aaa"] * 30))) == 30


@pytest.mark.parametrize("size", [(60, 15), (80, 24)])
async def test_two_letters_run_an_action(make_app, engine, size):
    app = make_app()
    async with app.run_test(size=size) as pilot:
        screen = await ready(pilot)
        await pilot.press("ctrl+x")
        await wait_until(pilot, lambda: isinstance(app.screen, WhichKey))
        await pilot.press("m", "backspace", "c")
        listed = app.screen.query_one(PickList)
        await wait_until(pilot, lambda: listed.option_count == len(action_letters("Chats")))
        await pilot.press("n")
        await wait_until(pilot, lambda: len(screen.tabs.sessions) == 2 and app.screen is screen)


async def test_the_same_key_closes_it_and_cuts_what_is_selected(make_app, engine):
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        await pilot.press("ctrl+x")
        await wait_until(pilot, lambda: isinstance(app.screen, WhichKey))
        await pilot.press("ctrl+x")
        await wait_until(pilot, lambda: app.screen is screen)
        await pilot.press("a", "b", "shift+left", "ctrl+x")
        await wait_until(pilot, lambda: screen.composer.text == "a")
        assert app.screen is screen


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        ({"close_tab": "ctrl+t"}, ["keys.close_tab", "Ctrl+T", "“New chat”"]),
        ({"fork": "alt+1"}, ["keys.fork", "Alt+1", "chat 1"]),
        ({"new_tab": "f11", "fork": "f11"}, ["keys.new_tab", "F11", "“Fork chat”"]),
        ({"fork": "x"}, ["keys.fork", "'x' is needed to write"]),
        ({"fork": "ctrl+comma"}, ["keys.fork", "'ctrl+comma' is none"]),
        ({"frk": "f11"}, ["keys.frk", "no such action"]),
    ],
)
def test_clashes_and_keys_that_cannot_be_are_named(keys, parts):
    [problem] = wrong_keys(keys, "F1")
    assert all(part in problem for part in parts), problem


def test_keys_that_are_free_are_not_complained_of():
    assert wrong_keys({"close_tab": "ctrl+w", "new_tab": "ctrl+n, f11"}, "F1") == []
    assert wrong_keys({"new_tab": "alt+w", "close_tab": "ctrl+t"}, "F1") == []
    assert checked_keys("ctrl+t, f2") == "ctrl+t,f2"
    for action in ACTIONS:
        assert action.id == "stop" or not action.keys or checked_keys(action.keys)


def test_no_two_actions_have_one_key():
    keys = [key for action in ACTIONS for key in action.keys.split(",") if key]
    assert len(set(keys)) == len(keys)
