"""What may stand behind /fan."""

import pytest

from app.settings.actions import FAN_FORMS
from app.writing.commands import all_commands, forms
from app.writing.fan import FanError, read_wish

COMMANDS = all_commands(())


def labels(text: str) -> list[str]:
    return [variant.label for variant in read_wish(text).variants]


@pytest.mark.parametrize(
    ("text", "expected", "message"),
    [
        ("seeds 1 2 3", ["seed 1", "seed 2", "seed 3"], ""),
        ("seeds 1, 2: 3 apples?", ["seed 1", "seed 2"], "3 apples?"),
        ("temperature 0.2 0.7 1.2 Why?", ["temperature 0.2", "temperature 0.7", "temperature 1.2"], "Why?"),
        ("temperature 0 1\nTwo\nlines", ["temperature 0", "temperature 1"], "Two\nlines"),
        ("models qwen3:8b gemma: What: is it?", ["qwen3:8b", "gemma"], "What: is it?"),
        ("models a b\nWhat is it?", ["a", "b"], "What is it?"),
        ('system "Be brief." "Rhyme." Hello', ["“Be brief.”", "“Rhyme.”"], "Hello"),
    ],
)
def test_each_form_says_what_sets_the_answers_apart(text, expected, message):
    assert labels(text) == expected
    assert read_wish(text).message == message


def test_a_number_draws_seeds_and_the_rest_is_the_message():
    wish = read_wish("3 What is a tern?")
    assert len({variant.sampling["seed"] for variant in wish.variants}) == 3
    assert wish.message == "What is a tern?"
    assert len(read_wish("").variants) == 4


def test_a_chat_with_a_seed_counts_on_from_it():
    assert [variant.sampling["seed"] for variant in read_wish("3", 41).variants] == [41, 42, 43]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("often", "write /fan 4, /fan seeds 1 2 3"),
        ("1", "from 2 to 9"),
        ("12", "from 2 to 9"),
        ("seeds 1", "at least two, such as /fan seeds 1 2 3"),
        ("seeds 1 -2", "-2 is not a whole number"),
        ("temperature 0.5 200", "not between 0 and 100"),
        ("temperature hot", "at least two, such as /fan temperature"),
        ("system Be brief.", "quotation marks"),
        ("models qwen", "at least two, such as /fan models"),
        ("seeds 1 2 3 4 5 6 7 8 9 10", "at most 9"),
    ],
)
def test_what_is_wrong_says_what_to_write(text, said):
    with pytest.raises(FanError, match=said.replace("(", r"\(")):
        read_wish(text)


def test_forms_are_offered_until_the_first_word_is_written():
    assert [text for text, _ in forms("/fan ", COMMANDS)] == [f"/fan {form}" for form, _ in FAN_FORMS]
    assert [text for text, _ in forms("/fan se", COMMANDS)] == ["/fan seeds 1 2 3"]
    assert forms("/fan seeds", COMMANDS) == forms("/fan seeds 1", COMMANDS) == forms("/help ", COMMANDS) == []
    for form, _ in FAN_FORMS:
        assert len(read_wish(form.replace("NAME NAME", "a b")).variants) > 1, "an example is right as it is"
