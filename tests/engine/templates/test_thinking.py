"""What templates understand of thinking is found out by rendering, and reaches them as variables."""

import pytest

from engine.api.answer_format import _FORMATS, MessageFormat, tells_format
from engine.api.thinking import Thinking, ThinkingSupport
from engine.gguf.file import open_gguf
from engine.templates.chat_template import ChatTemplate, Message
from engine.tokenizer.detokenizer import replayed
from engine.tokenizer.tokenizer import Tokenizer
from tests.support.text_samples import write_bpe

TURNS = "{% for m in messages %}{{ m.role + ': ' + m.content }}\n{% endfor %}"
SWITCH = TURNS + "assistant:{% if not (enable_thinking | default(true)) %}<think></think>{% endif %}"
GRANITE = "{% if thinking %}Think first.{% endif %}" + TURNS
HARMONY = (
    "{% if reasoning_effort is not defined %}{% set reasoning_effort = 'medium' %}{% endif %}"
    "Reasoning: {{ reasoning_effort }}\n" + TURNS + "<|start|>assistant"
)
MISTRAL = (
    "{% set e = reasoning_effort if reasoning_effort is defined else 'none' %}"
    "{% if e not in ['none', 'high'] %}{{ raise_exception('no') }}{% endif %}[{{ e }}]" + TURNS
)
SEED = "{% if thinking_budget is defined %}budget {{ thinking_budget }}{% endif %}" + TURNS + "<seed:think>"
MENTIONS = TURNS + "{# enable_thinking, reasoning_effort, thinking_budget: all mean nothing here #}"
HELLO = [Message("user", "hello")]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    controls = ("<|start|>", "<|end|>", "<|channel|>", "<|message|>")
    path = write_bpe(tmp_path_factory.mktemp("v") / "v.gguf", "qwen2", controls=controls)
    return Tokenizer.from_gguf(open_gguf(path))


def template(source, tokenizer) -> ChatTemplate:
    return ChatTemplate(source, tokenizer)


@pytest.mark.parametrize(
    ("source", "choices"),
    [
        (SWITCH, ("auto", "on", "off")),
        (GRANITE, ("auto", "on", "off")),
        (HARMONY, ("auto", "on", "low", "medium", "high")),
        (MISTRAL, ("auto", "on", "off", "high")),
        (SEED, ("auto",)),
        (MENTIONS, ("auto",)),
        (TURNS, ("auto",)),
        (None, ("auto",)),
    ],
)
def test_only_what_changes_the_prompt_can_be_chosen(source, choices, tokenizer):
    assert template(source, tokenizer).thinking_support.choices == choices


@pytest.mark.parametrize(
    ("source", "choice", "text"),
    [
        (SWITCH, "off", "user: hello\nassistant:<think></think>"),
        (SWITCH, "on", "user: hello\nassistant:"),
        (SWITCH, "auto", "user: hello\nassistant:"),
        (HARMONY, "high", "Reasoning: high\nuser: hello\n<|start|>assistant"),
        (MISTRAL, "off", "[none]user: hello\n"),
        (SEED, "700", "budget 700user: hello\n<seed:think>"),
        (MENTIONS, "off", "user: hello\n"),
    ],
)
def test_a_choice_reaches_the_template(source, choice, text, tokenizer):
    prompt = template(source, tokenizer).prompt(HELLO, thinking=Thinking.parse(choice))
    assert prompt.warning is None
    assert tokenizer.decode(prompt.ids, special=True) == text


def test_what_a_template_lacks_is_said_in_one_line():
    nothing, switch = ThinkingSupport(), ThinkingSupport(can_switch=True, has_thoughts=True)
    assert nothing.lacks(Thinking("off")) == "has no switch for thinking: off changes nothing"
    assert nothing.lacks(Thinking(budget=9)) == "sets no thoughts apart: a budget changes nothing"
    assert switch.lacks(Thinking("high")) == "knows thinking auto, on, off: high changes nothing"
    assert switch.lacks(Thinking("on", 9)) is None
    assert switch.fitted(Thinking("high", 9)) == Thinking("auto", 9)
    assert nothing.fitted(Thinking("off", 9)) == Thinking()


@pytest.mark.parametrize("text", ["auto", "on", "off", "low", "high 2048", "512"])
def test_a_choice_is_read_as_it_is_written(text):
    assert str(Thinking.parse(text)) == text


@pytest.mark.parametrize("text", ["", "of", "0", "-5", "off 5", "low high", "5 6", "1e9", str(1 << 31), "５"])
def test_what_is_no_choice_is_refused(text):
    with pytest.raises(ValueError, match="a budget in tokens, not "):
        Thinking.parse(text)


@pytest.mark.parametrize("row", _FORMATS, ids=lambda row: row.ending)
def test_every_format_has_words_that_end_a_thought(row):
    """The end, put behind a thought that has begun, begins the answer."""
    from app.chat.reasoning import Part, splitter_for

    splitter = splitter_for(row, opened=not isinstance(row, MessageFormat))
    text = row.opening + "hm" if isinstance(row, MessageFormat) else "hm"
    marks = sorted(row.markers, key=len, reverse=True)
    pieces = []
    for piece, marker in cut(text + row.ending + "Yes", marks):
        pieces += splitter.push(piece, marker)
    pieces += splitter.flush()
    told = {part: "".join(text for one, text in pieces if one is part) for part in Part}
    assert (told[Part.REASONING].strip(), told[Part.ANSWER]) == ("hm", "Yes")


def cut(text: str, marks: list[str]):
    """Cut a text at marks, as tokens of a vocabulary would."""
    while text:
        at, mark = min(((text.find(mark), mark) for mark in marks if mark in text), default=(len(text), ""))
        if at:
            yield text[:at], ""
        if mark:
            yield "", mark
        text = text[at + len(mark) :]


def test_the_end_of_thoughts_is_the_tokens_that_the_model_would_write(tokenizer):
    ending = template(SWITCH + "<think>", tokenizer).prompt(HELLO).ending
    ids = [token_id for delta in ending for token_id in delta.token_ids]
    assert ids == tokenizer.encode("\n</think>\n\n", special=True, first=False)
    assert [delta.marker for delta in ending if delta.marker] == ["</think>"]


def test_an_answer_is_replayed_as_it_streamed_but_for_half_a_character(tokenizer):
    ids = tokenizer.encode("a é 😀", first=True)
    assert "".join(delta.text for delta in replayed(tokenizer, ids)) == "a é 😀"
    whole = replayed(tokenizer, ids[:-1])
    assert "\ufffd" not in "".join(delta.text for delta in whole)
    assert [i for delta in whole for i in delta.token_ids] == ids[: len(whole)]


def test_a_model_that_tells_no_format_has_no_thoughts_to_end():
    assert not tells_format(TURNS, ())
    assert tells_format(TURNS + "<think>", ()) and tells_format(TURNS, ("<think>", "</think>"))
