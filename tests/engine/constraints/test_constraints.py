"""Constraints on small vocabularies of each kind: which tokens may come, and what is refused."""

import itertools
import json
from random import Random

import numpy as np
import pytest

from engine.api.answer_format import format_of
from engine.api.constraint import Constraint, ConstraintError, ConstraintKind
from engine.api.tool_format import tool_format_of
from engine.constraints import compiler as module
from engine.constraints.compiler import Constraints
from engine.constraints.short_strings import ShortStrings, probe_of
from engine.tokenizer.tokenizer import Tokenizer
from tests.support.tiny_gguf import make_tiny
from tests.support.tiny_vocab import bpe_vocabulary, spm_vocabulary

MORE = 5
"""Logits beyond the tokenizer's tokens."""
JSON, REGEX, GRAMMAR, CALLS, TOOLS = (
    ConstraintKind.JSON_SCHEMA,
    ConstraintKind.REGEX,
    ConstraintKind.GRAMMAR,
    ConstraintKind.CALLS,
    ConstraintKind.TOOLS,
)


@pytest.fixture(scope="module", params=["bpe", "spm"])
def tokenizer(request, tmp_path_factory) -> Tokenizer:
    vocabulary = bpe_vocabulary() if request.param == "bpe" else spm_vocabulary()
    return Tokenizer.from_file(
        make_tiny(tmp_path_factory.mktemp("vocabulary") / "tiny.gguf", "llama", vocabulary, layers=1)
    )


@pytest.fixture(scope="module")
def constraints(tokenizer) -> Constraints:
    return Constraints(tokenizer, tokenizer.vocab_size + MORE)


def allowed(matcher, ids, start=0) -> set[int]:
    matcher.follow(ids, start)
    assert matcher.ready.wait(60) and matcher.error is None
    return set(np.flatnonzero(np.unpackbits(matcher.words.view(np.uint8), bitorder="little")).tolist())


def takes(constraints, tokenizer, constraint, text) -> bool:
    """Whether an answer may be this text, token by token, and end behind it."""
    matcher, ids = constraints.matcher(constraint), []
    for token_id in tokenizer.encode(text, special=True, first=False):
        if token_id not in allowed(matcher, ids):
            return False
        ids.append(token_id)
    return tokenizer.eog_ids <= allowed(matcher, ids)


def test_exactly_the_tokens_that_lead_to_a_text_of_the_language(tokenizer, constraints):
    words, ends = ("the", "tö"), ("", "!", " 7", "\U0001f41f")
    language = ["".join(parts).encode() for parts in itertools.product(words, ends)]
    matcher = constraints.matcher(Constraint(REGEX, "(the|tö)(!| 7|\U0001f41f)?"))
    pieces = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
    seen, waiting = set(), [()]
    while waiting:
        ids = waiting.pop()
        begun = b"".join(pieces[i] for i in ids)
        found = allowed(matcher, ids)
        fits = {
            i
            for i, piece in enumerate(pieces)
            if piece and any(text.startswith(begun + piece) for text in language)
        }
        ends_here = tokenizer.eog_ids if begun in language else set()
        next_bytes = {text[len(begun)] for text in language if text.startswith(begun) and text != begun}
        assert found <= fits | ends_here
        if len(next_bytes) + bool(ends_here) > 1:
            assert found == fits | ends_here, begun
        waiting += [(*ids, i) for i in found - tokenizer.eog_ids]
        seen |= {begun} if ends_here else set()
    assert seen == set(language)


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("kind", "text", "yes", "no"),
    [
        (JSON, json.dumps(PERSON), '{"name": "Zoë \U0001f41f", "age": 7}', '{"name": "Al"}'),
        (JSON, json.dumps(PERSON), '{\n  "name":"","age":-1\n}', '{"age": 1, "name": "Al"}'),
        (REGEX, "[a-f]{2}/[0-9]+", "ab/12", "ab/"),
        (GRAMMAR, 'start: "a" other+\nother: "b" | "c"', "abcb", "a"),
        (GRAMMAR, 'root ::= "a" [0-9]', "a1", "a12"),
    ],
)
def test_what_is_in_the_language_and_what_is_not(tokenizer, constraints, kind, text, yes, no):
    constraint = Constraint(kind, text)
    assert takes(constraints, tokenizer, constraint, yes)
    assert not takes(constraints, tokenizer, constraint, no)


def test_thoughts_in_front_are_free(tokenizer, constraints):
    row = format_of("<think>", tokenizer.control_tokens)
    free = Constraint(JSON, json.dumps(PERSON), row)
    answer = '{"name": "a", "age": 1}'
    assert takes(constraints, tokenizer, free, answer)
    assert takes(constraints, tokenizer, free, f"<think>what {{ is</think>\n\n{answer}")
    begun = Constraint(JSON, json.dumps(PERSON), row, in_thoughts=True)
    assert takes(constraints, tokenizer, begun, f"what is</think>{answer}")
    assert not takes(constraints, tokenizer, begun, answer)
    assert not takes(constraints, tokenizer, Constraint(JSON, json.dumps(PERSON)), f"<think></think>{answer}")


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"$ref": "#/$defs/unit"}},
            "required": ["city"],
            "additionalProperties": False,
            "$defs": {"unit": {"enum": ["C", "F"]}},
        },
    },
}
TEMPLATES = {
    "<tool_call>": '<tool_call>\n{{"name": "{name}", "arguments": {{"city": "x", "unit": "C"}}}}\n'
    "</tool_call>",
    "<tool_call> <function=": "<tool_call>\n<function={name}>\n<parameter=city>\nx <b>\n</parameter>\n"
    '<parameter=unit>\n"C"\n</parameter>\n</function>\n</tool_call>',
    "[TOOL_CALLS]": '[TOOL_CALLS][{{"name": "{name}", "arguments": {{"city": "x"}}}}]',
    '"parameters": dictionary': '{{"name": "{name}", "parameters": {{"city": "x"}}}}',
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_calls_are_held_to_their_tools_in_each_form(tokenizer, constraints, template):
    row = tool_format_of(template)
    constraint = Constraint(CALLS, json.dumps([TOOL]), tool_format=row)
    written = TEMPLATES[template]
    assert takes(constraints, tokenizer, constraint, written.format(name="weather"))
    assert not takes(constraints, tokenizer, constraint, written.format(name="other"))
    assert not takes(constraints, tokenizer, constraint, "I do not know.")
    wrong = written.format(name="weather").replace('"C"', '"K"')
    assert ('"C"' not in written) or not takes(constraints, tokenizer, constraint, wrong)


@pytest.mark.parametrize("template", TEMPLATES)
def test_an_answer_is_of_its_format_or_a_call(tokenizer, constraints, template):
    row = tool_format_of(template)
    constraint = Constraint(JSON, json.dumps(PERSON), tool_format=row, calls=json.dumps([TOOL]))
    written = TEMPLATES[template]
    assert takes(constraints, tokenizer, constraint, '{"name": "a", "age": 1}')
    assert takes(constraints, tokenizer, constraint, written.format(name="weather"))
    assert not takes(constraints, tokenizer, constraint, written.format(name="other"))
    assert not takes(constraints, tokenizer, constraint, '{"name": "a"}')
    assert not takes(constraints, tokenizer, constraint, "I do not know.")
    both = '{"name": "a", "age": 1}' + written.format(name="weather")
    assert not takes(constraints, tokenizer, constraint, both)


SHORT = {"type": "string", "maxLength": 9}
LINES = {"type": "array", "items": SHORT}
BIRD = {
    "type": "object",
    "properties": {"a": {"enum": ["tern", "gull"]}, "b": {**SHORT, "minLength": 4}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
CHOICE = {"anyOf": [{**SHORT, "maxLength": 2}, LINES]}
OPEN = {"type": "object", "properties": {"c": CHOICE}, "required": ["c"]}


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint(JSON, json.dumps(BIRD)),
        Constraint(JSON, json.dumps(OPEN)),
        Constraint(
            *(CALLS, json.dumps([{"type": "function", "function": {"name": "f", "parameters": OPEN}}])),
            tool_format=tool_format_of("<tool_call>"),
        ),
    ],
    ids=["bird", "open", "calls"],
)
def test_short_strings_have_the_masks_that_the_library_gives(tokenizer, constraints, constraint, monkeypatch):
    """Along random answers that prefer text, so that strings are filled to their ends."""
    quick = constraints.matcher(constraint)
    monkeypatch.setattr(module, "probe_of", lambda _constraint: None)
    usual = Constraints(tokenizer, tokenizer.vocab_size + MORE).matcher(constraint)
    fills, fill = [], ShortStrings.fill
    monkeypatch.setattr(ShortStrings, "fill", lambda *what: fills.append(fill(*what)) or fills[-1])
    for seed in range(4):
        random, ids = Random(seed), []
        for _ in range(150):
            found = allowed(quick, ids)
            assert found == allowed(usual, ids), tokenizer.decode(ids)
            text = [i for i in found if tokenizer.token_bytes(i).isalnum()]
            ids.append(random.choice(sorted(text if text and random.random() < 0.7 else found)))
            if ids[-1] in tokenizer.eog_ids:
                break
    assert any(fills)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {**SHORT, "pattern": "a*"},
        {"anyOf": [SHORT, {"enum": ["a longer string"]}]},
        {**SHORT, "description": "~^`@#%&!"},
    ],
)
def test_other_strings_are_left_to_the_library(schema):
    assert probe_of(Constraint(JSON, json.dumps(schema))) is None
    assert probe_of(Constraint(REGEX, json.dumps(SHORT))) is None
    assert probe_of(Constraint(JSON, json.dumps({**SHORT, "description": "~"}))) == "^"


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (
            Constraint(JSON, '{"properties": {"a": {"items": {"type": "x"}}}}'),
            "properties.a.items: .*x",
        ),
        (Constraint(JSON, '{"anyOf": [{}, {"not": {}}]}'), r"anyOf\[1\]: .*not"),
        (Constraint(JSON, '{"type": "string", "pattern": "(a"}'), "unclosed group"),
        (Constraint(JSON, '{"type": '), "not JSON: .*line 1 column 10"),
        (Constraint(JSON, "[1]"), "is an object"),
        (Constraint(REGEX, "[0-9"), "unclosed character class"),
        (Constraint(GRAMMAR, 'start: a\na: "b" | other'), "line 2, column 4: .*other"),
        (
            Constraint(
                CALLS,
                json.dumps([TOOL, {"function": {"name": "f", "parameters": {"items": {"type": "x"}}}}]),
                tool_format=tool_format_of("<tool_call>"),
            ),
            r"\[1\]\.function\.parameters\.items: .*x",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_place(constraints, constraint, words):
    with pytest.raises(ConstraintError, match=words):
        constraints.matcher(constraint)


def test_an_answer_that_was_cut_is_followed_anew(tokenizer, constraints):
    ids = tokenizer.encode('{"name": "abc", "age": 1}', first=False)
    constraint = Constraint(JSON, json.dumps(PERSON))
    matcher = constraints.matcher(constraint)
    masks = [allowed(matcher, [9, 9, *ids[:count]], 2) for count in range(len(ids) + 1)]
    for count in (4, 5, 0, len(ids), 2):
        assert allowed(matcher, [9, 9, *ids[:count]], 2) == masks[count]


def test_an_answer_that_does_not_fit_is_said_to(tokenizer, constraints):
    matcher = constraints.matcher(Constraint(REGEX, "[0-9]"))
    matcher.follow(tokenizer.encode("x", first=False), 0)
    assert matcher.ready.wait(60) and matcher.error
    assert not matcher.words.any()
