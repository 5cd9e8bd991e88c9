import re
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.chat.reasoning import Part, splitter_for
from engine import THINK
from engine.api.answer_format import MARKERS, format_of

PIECES = ["<think>", "</think>", "<", "</", "think>", "<thi", "</thin", " ", "\n\n", "a", "b c", "é", "x<y"]
texts = st.lists(st.sampled_from(PIECES), max_size=10).map("".join)

HARMONY = format_of("", {"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"})
MUSE = format_of("to=self <|eom|>", {"<|start|>", "<|message|>", "<|eom|>"})
SOLAR = format_of("", {"<|begin|>", "<|think|>", "<|content|>", "<|end|>"})
GEMMA = format_of("", {"<|channel>", "<channel|>"})
MISTRAL = format_of("", {"[THINK]", "[/THINK]"})
TOKENS = format_of("", {"<think>", "</think>"})
ANSWERS = format_of("<think></think> <answer>", {"<think>", "</think>"})


def reference(text, opened):
    """The same rule in one regular expression over the whole text."""
    start = r"\s*(?:<think>\s*)?" if opened else r"\s*<think>\s*"
    match = re.match(start, text)
    if not match:
        return "", text
    rest = text[match.end() :]
    reasoning, tag, answer = rest.partition("</think>")
    return (reasoning.rstrip(), answer.lstrip()) if tag else (rest, "")


def parts_of(deltas, row=THINK, opened=False):
    """(reasoning, answer) of a stream of (text, marker)."""
    splitter = splitter_for(row, opened)
    parts = {Part.REASONING: "", Part.ANSWER: ""}
    for text, marker in deltas:
        for part, piece in splitter.push(text, marker):
            assert piece
            parts[part] += piece
    for part, piece in splitter.flush():
        parts[part] += piece
    return parts[Part.REASONING], parts[Part.ANSWER]


def split_in_pieces(text, cuts=(), opened=False):
    places = sorted({0, len(text), *cuts})
    pieces = [text[a:b] for a, b in pairwise(places)]
    return parts_of([(piece, "") for piece in pieces], opened=opened)


def stream(*items):
    """Deltas of texts, and of markers in guillemets: «<|end|>»; what is user-defined spells itself."""
    spelled = ("<think>", "</think>", "<|channel|>", "<|message|>", "<|start|>", "<|end|>")
    deltas = []
    for item in items:
        marker = item[1:-1] if item.startswith("«") else ""
        deltas.append((marker if marker in spelled else "" if marker else item, marker))
    return deltas


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


WORDS = ["thought\n", "thought", "analysis", "final", " to=user", "assistant", "<answer>"]
ITEMS = st.one_of(
    st.sampled_from([f"«{marker}»" for marker in sorted(MARKERS)]),
    st.sampled_from([*PIECES, *WORDS, "x" * 90]),
)
ROWS = [THINK, TOKENS, ANSWERS, HARMONY, MUSE, SOLAR, GEMMA, MISTRAL]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(ROWS), st.lists(ITEMS, max_size=12), st.booleans(), st.randoms(use_true_random=False))
def test_any_split_of_any_format_gives_the_same_parts(row, items, opened, rng):
    whole, cut = [], []
    for text, marker in stream(*items):
        if not marker and whole and not whole[-1][1]:
            whole[-1] = (whole[-1][0] + text, "")
        else:
            whole.append((text, marker))
        if marker:
            cut.append((text, marker))
        else:
            at = rng.randint(0, len(text))
            cut += [(text[:at], ""), *((char, "") for char in text[at:])]
    assert parts_of(cut, row, opened) == parts_of(whole, row, opened)


def test_examples():
    assert split_in_pieces("<think>\nhm\n</think>\n\nYes.") == ("hm", "Yes.")
    assert split_in_pieces("hm</think>Yes.", opened=True) == ("hm", "Yes.")
    assert split_in_pieces("<think>again</think>Yes.", opened=True) == ("again", "Yes.")
    assert split_in_pieces("Say <think> in words </think>") == ("", "Say <think> in words </think>")
    assert split_in_pieces("<think>never closed") == ("never closed", "")
    assert split_in_pieces("<thin") == ("", "<thin")
    assert split_in_pieces("<think></think>x") == ("", "x")


ANALYSIS = ("«<|channel|>»", "analysis", "«<|message|>»", "2 + 2", "?", "«<|end|>»", "«<|start|>»")
FINAL = ("«<|channel|>»", "final", "«<|message|>»", "Four", ".")


@pytest.mark.parametrize(
    ("row", "items", "expected"),
    [
        (HARMONY, [*ANALYSIS, *FINAL], ("2 + 2?", "Four.")),
        (HARMONY, FINAL, ("", "Four.")),
        (HARMONY, ANALYSIS, ("2 + 2?", "")),
        (HARMONY, [*ANALYSIS, *ANALYSIS, *FINAL], ("2 + 2?\n\n2 + 2?", "Four.")),
        (HARMONY, [*ANALYSIS, "«<|channel|>»", "fin"], ("2 + 2?", "")),
        (HARMONY, ["«<|channel|>»", "final ", "«<|constrain|>»", "json", "«<|message|>»", "{}"], ("", "{}")),
        (HARMONY, ["«<|channel|>»", "commentary", "«<|message|>»", "Let me see."], ("", "Let me see.")),
        (
            HARMONY,
            ["«<|channel|>»", "commentary", "«<|message|>»", "See.", *ANALYSIS[-2:], "assistant", *FINAL],
            ("", "See.\n\nFour."),
        ),
        (
            HARMONY,
            [*ANALYSIS, " to=functions.f", "«<|channel|>»", "commentary", "«<|message|>»", "{}"],
            ("2 + 2?\n\n{}", ""),
        ),
        (HARMONY, ["«<|channel|>»", "commentary to=assistant", *FINAL], ("", "Four.")),
        (HARMONY, [*FINAL, "«<|end|>»", "«<|start|>»", "user", "«<|message|>»", "More"], ("More", "Four.")),
        (HARMONY, ["Plain", " text"], ("", "Plain text")),
        (HARMONY, [" to the point"], ("", " to the point")),
        (HARMONY, ["«<|channel|>»", "x" * 300], ("", "x" * 300)),
        (MUSE, [" to=self", "«<|message|>»", "Hm.", "«<|eom|>»", "«<|start|>»", "assistant to=user",
                "«<|message|>»", "Yes."], ("Hm.", "Yes.")),
        (MUSE, [" to", "=", "user", "«<|message|>»", "Yes."], ("", "Yes.")),
        (MUSE, ["«<|message|>»", "Yes."], ("", "Yes.")),
        (MUSE, [" to=weather", "«<|message|>»", "{}"], ("{}", "")),
        (SOLAR, ["«<|think|>»", "Hm.", "«<|end|>»", "«<|begin|>»", "assistant", "«<|content|>»", "Yes."],
         ("Hm.", "Yes.")),
        (GEMMA, ["«<|channel>»", "thought\n", "Hm.\n", "«<channel|>»", "Yes."], ("Hm.", "Yes.")),
        (GEMMA, ["«<|channel>»", "thought", "«<channel|>»", "Yes."], ("", "Yes.")),
        (GEMMA, ["Yes.", "«<|channel>»", "thought", "\n", "«<channel|>»"], ("", "Yes.")),
        (GEMMA, ["Yes.", "«<channel|>»"], ("", "Yes.")),
        (GEMMA, ["«<|channel>»", "thought\n", "a", "«<channel|>»", "b", "«<|channel>»", "thought\n", "c",
                 "«<channel|>»", "d"], ("a\n\nc", "b\n\nd")),
        (GEMMA, ["«<|channel>»", "thou"], ("", "")),
        (GEMMA, ["<|channel>thought\n", "a"], ("", "<|channel>thought\na")),
        (MISTRAL, ["«[THINK]»", "Hm.", "«[/THINK]»", "Yes."], ("Hm.", "Yes.")),
        (MISTRAL, ["Yes.", "«[THINK]»", " No."], ("", "Yes. No.")),
        (TOKENS, ["«<think>»", "\n\n", "Hm </think> hm.\n", "«</think>»", "\n\nYes."],
         ("Hm </think> hm.", "Yes.")),
        (TOKENS, ["<think>", "Hm.", "</think>"], ("", "<think>Hm.</think>")),
        (TOKENS, ["The tag ", "«<think>»", " opens."], ("", "The tag <think> opens.")),
        (ANSWERS, ["«<think>»", "Hm.", "«</think>»", "\n<ans", "wer>Yes.\n</ans", "wer>"], ("Hm.", "Yes.")),
        (ANSWERS, ["«<think>»", "Hm.", "«</think>»", "<answers> </answer>"], ("Hm.", "<answers> </answer>")),
    ],
)  # fmt: skip
def test_formats(row, items, expected):
    assert parts_of(stream(*items), row) == expected


def test_a_prompt_may_have_opened_the_thought():
    assert parts_of(stream("Hm.", "«<|end|>»", "«<|start|>»", "assistant", *FINAL), HARMONY, True) == (
        *("Hm.", "Four."),
    )
    assert parts_of(stream("Hm.", "«[/THINK]»", "Yes."), MISTRAL, True) == ("Hm.", "Yes.")
    assert parts_of(stream("«<think>»", "Hm.", "«</think>»", "Yes."), TOKENS, True) == ("Hm.", "Yes.")


def test_text_that_cannot_be_a_tag_is_not_held_back():
    assert splitter_for().push("H") == [(Part.ANSWER, "H")]
    assert splitter_for(opened=True).push("a <") == [(Part.REASONING, "a")]
    assert splitter_for(TOKENS, opened=True).push("a <") == [(Part.REASONING, "a <")]
    assert splitter_for(HARMONY).push("H") == [(Part.ANSWER, "H")]
