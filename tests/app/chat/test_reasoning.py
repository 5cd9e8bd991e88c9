import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.chat.reasoning import Part, ReasoningSplitter

PIECES = ["<think>", "</think>", "<", "</", "think>", "<thi", "</thin", " ", "\n\n", "a", "b c", "é", "x<y"]
texts = st.lists(st.sampled_from(PIECES), max_size=10).map("".join)


def reference(text, opened):
    """The same rule in one regular expression over the whole text."""
    start = r"\s*(?:<think>\s*)?" if opened else r"\s*<think>\s*"
    match = re.match(start, text)
    if not match:
        return "", text
    rest = text[match.end() :]
    reasoning, tag, answer = rest.partition("</think>")
    return (reasoning.rstrip(), answer.lstrip()) if tag else (rest, "")


def split_in_pieces(text, cuts=(), opened=False):
    splitter = ReasoningSplitter(opened)
    parts = {Part.REASONING: "", Part.ANSWER: ""}
    at = 0
    for cut in [*sorted(cuts), len(text)]:
        for part, piece in splitter.push(text[at : max(at, cut)]):
            assert piece
            parts[part] += piece
        at = max(at, cut)
    for part, piece in splitter.flush():
        parts[part] += piece
    return parts[Part.REASONING], parts[Part.ANSWER]


@settings(max_examples=500, deadline=None)
@given(texts, st.lists(st.integers(0, 60), max_size=12), st.booleans())
@example("<think>a</think>b", list(range(20)), False)
@example("<think>\n\n</think>\n\nhi", list(range(24)), False)
@example("a</think>b", [1, 2, 3], True)
def test_any_split_gives_the_same_as_the_whole(text, cuts, opened):
    cuts = [cut for cut in cuts if cut <= len(text)]
    reasoning, answer = split_in_pieces(text, cuts, opened)
    assert (reasoning, answer) == split_in_pieces(text, opened=opened)
    expected_reasoning, expected_answer = reference(text, opened)
    assert (reasoning.rstrip(), answer) == (expected_reasoning.rstrip(), expected_answer)


def test_examples():
    assert split_in_pieces("<think>\nhm\n</think>\n\nYes.") == ("hm", "Yes.")
    assert split_in_pieces("hm</think>Yes.", opened=True) == ("hm", "Yes.")
    assert split_in_pieces("<think>again</think>Yes.", opened=True) == ("again", "Yes.")
    assert split_in_pieces("Say <think> in words </think>") == ("", "Say <think> in words </think>")
    assert split_in_pieces("<think>never closed") == ("never closed", "")
    assert split_in_pieces("<thin") == ("", "<thin")
    assert split_in_pieces("<think></think>x") == ("", "x")


def test_text_that_cannot_be_a_tag_is_not_held_back():
    splitter = ReasoningSplitter()
    assert splitter.push("H") == [(Part.ANSWER, "H")]
    splitter = ReasoningSplitter(opened=True)
    assert splitter.push("a <") == [(Part.REASONING, "a")]
    assert splitter.in_reasoning
