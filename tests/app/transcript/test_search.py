"""A word in a message's rows: where it is found, and where it is marked."""

import pytest

from app.transcript.message import MessageRows, MessageView
from app.transcript.search import Word


def laid_out(text: str, width: int = 40, **more) -> MessageRows:
    item = MessageRows(MessageView("1", "assistant", text, title="tern 7B", footer="9 tokens", **more))
    item.layout(width)
    return item


def marked(item: MessageRows, word: str) -> list[str]:
    """What is marked, row by row."""
    spans = ((row, Word(word).spans(item.rows, index, None)) for index, row in enumerate(item.rows))
    return [row.text[start:end] for row, found in spans for start, end, _ in found]


def test_a_word_is_found_in_the_text_not_in_what_stands_around_it():
    item = laid_out("a **Tern** flies\n\nwith tokens\n\n```tern\nx\n```")
    assert marked(item, "tern") == ["Tern"] and marked(item, "tokens") == ["tokens"]
    assert len(list(Word("tern").places(item.searched(40)))) == 1
    assert marked(item, "copy") == [] and marked(item, "pelican") == []


@pytest.mark.parametrize("width", [8, 13, 40])
@pytest.mark.parametrize(
    "source",
    ["one two arctic tern three", "> one two arctic tern three", "```\none two arctic tern three\n```"],
    ids=["text", "quote", "code"],
)
def test_a_word_that_is_wrapped_is_found_once_at_the_same_place(source, width):
    whole = list(Word("arctic tern").places(laid_out(source).searched(40)))
    item = laid_out(source, width)
    assert len(whole) == 1 and list(Word("arctic tern").places(item.searched(width))) == whole
    shown = "".join(marked(item, "arctic tern")).replace(" ", "")
    assert shown == "arctictern"
    kinds = {
        kind for i in range(len(item.rows)) for *_, kind in Word("arctic tern").spans(item.rows, i, whole[0])
    }
    assert kinds == {"hithere"}


def test_folded_reasoning_is_searched_in_the_place_that_it_has_unfolded():
    item = laid_out("done", reasoning="a line\nwith a tern in it")
    [place] = Word("tern").places(item.searched(40))
    assert marked(item, "tern") == []
    item.reasoning.expanded = True
    item.layout(40)
    assert [place] == list(Word("tern").places(item.searched(40))) and marked(item, "tern") == ["tern"]


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("a **b**old word", "bold"),
        ("x &lt; y", "x < y"),
        (r"$\alpha$", "α"),
        ("[tern](http://a.b)", "tern ("),
    ],
)
def test_no_message_is_passed_over_that_shows_the_word(source, word):
    assert marked(laid_out(source), word) and Word(word).may_be_in(source)
    assert not Word("pelican").may_be_in("a tern")
