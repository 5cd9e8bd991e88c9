"""Slash commands by their letters, and messages that look like one."""

import pytest

from app.settings.actions import ACTIONS
from app.writing.commands import all_commands, as_message, as_written, begun, called, matching, named
from app.writing.prompts import KeptPrompt

COMMANDS = all_commands([KeptPrompt("summarize", "Make it short", "Summarize {{text}}.")])


def test_every_action_and_prompt_is_a_command():
    names = [command.name for command in COMMANDS]
    assert names == ["summarize", *(action.id for action in ACTIONS)]


@pytest.mark.parametrize(
    ("letters", "first"),
    [
        ("sum", "summarize"),
        ("newt", "new_tab"),
        ("new-t", "new_tab"),
        ("theme", "choose_theme"),
        ("edit", "edit"),
    ],
)
def test_a_few_letters_find_it(letters, first):
    assert matching(letters, COMMANDS)[0].name == first


def test_letters_that_fit_nothing_offer_nothing():
    assert matching("xyzzy", COMMANDS) == [] and len(matching("", COMMANDS)) == len(COMMANDS)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("/help", ("help", "")),
        ("/new-tab ", ("new_tab", "")),
        ("/summarize one\ntwo", ("summarize", "one\ntwo")),
        ("/etc/passwd is what?", None),
        ("//help", None),
        (" /help", None),
        ("/* a comment */", None),
        ("a /help", None),
    ],
)
def test_what_calls_a_command(text, call):
    assert called(text) == call


def test_the_name_of_a_prompt_with_a_hyphen_is_found():
    commands = all_commands([KeptPrompt("code-review", "", "Review it.")])
    assert named("code_review", commands) is commands[0]


@pytest.mark.parametrize(
    "message", ["/help", "/help me\nplease", "//help", "///x y", "// a comment", "/etc/x", "a"]
)
def test_every_message_can_be_written_so_that_it_is_sent_as_it_is(message):
    written = as_written(message)
    assert called(written) is None and as_message(written) == message


def test_a_command_is_begun_only_at_the_first_letter():
    assert begun("/he") == "he" and begun("/") == ""
    assert begun("a /he") is None and begun("/he x") is None
