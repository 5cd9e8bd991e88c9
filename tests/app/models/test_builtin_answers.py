"""What the built-in model's card says of it, by a few greedy answers."""

import re
from collections.abc import Iterator

import pytest

from app.models.builtin import builtin_model_path
from engine import Engine, summarize
from engine.engine import Model
from tests.perf.first_questions import GREEDY, talk


@pytest.fixture(scope="module")
def pocket() -> Iterator[Model]:
    with Engine() as engine:
        yield engine.load(builtin_model_path())


@pytest.mark.parametrize(
    ("turns", "words"),
    [
        (("Hi",), ("help",)),
        (("Who are you?",), ("Pocket", "tui-chat")),
        (("How do I open a new tab here?",), ("Ctrl+T",)),
        (("How do I stop an answer?",), ("Esc",)),
        (("How do I use another model?",), ("Ctrl+O",)),
        (("Where are the settings?",), ("Alt+L",)),
        (("How do I quit the program?",), ("Ctrl+Q",)),
        (("My name is Anna.", "What is my name?"), ("Anna",)),
        (("I have a cat called Milo.", "What is my cat's name?"), ("Milo",)),
        (("What's my dog's name?",), ("haven't told me",)),
        (("Write a message to my landlord that the heating is broken",), ("heating is broken", "regards")),
        (("where do I switch off the notifications",), ("Alt+L", "`notify`")),
        (("is this running on my machine or in some cloud?",), ("your own computer",)),
        (("what ends the program",), ("Ctrl+Q",)),
        (("Which company built you?",), ("tui-chat project",)),
        (("your reply should land in my clipboard",), ("Alt+C",)),
        (("I'm fed up with Pocket, let me have another brain",), ("Ctrl+O",)),
        (("How do I open a new tab?", "and what closes it?"), ("Alt+W",)),
        (("How can I regenerate your answer?",), ("Ctrl+R",)),
        (("which key quits this program",), ("Ctrl+Q",)),
        (("is there something like grep for this conversation",), ("Ctrl+F",)),
    ],
    ids=lambda turns: turns[-1],
)
def test_first_questions_are_answered_and_end_by_themselves(
    pocket: Model, turns: tuple[str, ...], words: tuple[str, ...]
) -> None:
    answer = talk(pocket, turns, GREEDY)
    assert answer.ended and not answer.looped
    assert all(word in answer.text for word in words), answer.text


@pytest.mark.parametrize(
    "question", ["how do I stop a nosebleed", "close the window, it's cold", "what is a tab in a bar?"]
)
def test_a_question_on_other_things_is_not_answered_with_a_key(pocket: Model, question: str) -> None:
    answer = talk(pocket, (question,), GREEDY)
    assert answer.ended and not answer.looped
    assert not re.search(r"Ctrl|Alt|Esc|F\d|/\w|tui-chat \w", answer.text), answer.text


def test_the_file_names_its_licence_and_the_longest_answer() -> None:
    summary = summarize(builtin_model_path())
    assert summary.license == "cc-by-sa-4.0"
    assert summary.sampling == {"temperature": 0.6, "repetition_penalty": 1.1, "max_tokens": 200}
