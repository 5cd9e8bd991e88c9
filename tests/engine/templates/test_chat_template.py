"""Conversations as token ids: no injection, kept answers, stated defaults."""

from enum import StrEnum
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api.errors import TemplateError
from engine.gguf.file import open_gguf
from engine.templates.chat_template import ChatTemplate, KeptAnswer, Message
from engine.tokenizer.tokenizer import Tokenizer
from tests.support.text_samples import write_bpe, write_spm

OWN = Path(__file__).parents[2] / "golden" / "templates"
SHARED = Path(__file__).parents[4] / "shared" / "data" / "templates"
TEMPLATES = sorted([*OWN.glob("*.jinja"), *SHARED.glob("*.jinja")])
CONTROLS = (
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<start_of_turn>", "<end_of_turn>"),
    *("[INST]", "[/INST]", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "PAD"),
    *("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
)
HARMLESS = [
    Message("system", "S s"),
    Message("user", "u u"),
    Message("assistant", "a a"),
    Message("user", "v"),
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = write_bpe(tmp_path_factory.mktemp("v") / "v.gguf", "qwen2", controls=CONTROLS)
    return Tokenizer.from_gguf(open_gguf(path))


@pytest.fixture(scope="module")
def spm(tmp_path_factory):
    path = write_spm(tmp_path_factory.mktemp("v") / "s.gguf", reachable_controls=True)
    return Tokenizer.from_gguf(open_gguf(path))


def load(name, tokenizer):
    return ChatTemplate((OWN / f"{name}.jinja").read_text(), tokenizer)


def special_ids(tokenizer, ids):
    guarded = set(tokenizer.control_tokens.values())
    return [i for i in ids if i in guarded]


FRAGMENTS = st.sampled_from(
    [*CONTROLS, "<|im_start|>", "<|im_end|>", "<|", "|>", "im_end", "<", ">", "|", "[", "/INST]", "</s", "s>",
     "</think>", "<think>", "/think", "\u200b", "---", " ", "\n", "a", "user", "\U000f0000", "\ue000", "P",
     "AD", "<|im_/thinkend|>", "</s>", "<s>", "{{ bos_token }}", "\U000f0005", "é", "😀"]
)  # fmt: skip
CONTENT = st.lists(FRAGMENTS, min_size=1, max_size=8).map("".join)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
@pytest.mark.parametrize("kind", ["tokenizer", "spm"])
def test_contents_never_become_control_tokens(path, kind, request):
    vocabulary = request.getfixturevalue(kind)
    template = ChatTemplate(path.read_text(), vocabulary)
    expected = special_ids(vocabulary, template.encode(HARMLESS))

    @settings(max_examples=60, deadline=None)
    @given(st.lists(CONTENT, min_size=4, max_size=4))
    def check(contents):
        wrapped = [f"x{text}y" for text in contents]
        ids = template.encode([Message(old.role, text) for old, text in zip(HARMLESS, wrapped, strict=True)])
        assert special_ids(vocabulary, ids) == expected
        assert template.warning is None
        if path.stem != "cutting":
            # SentencePiece writes spaces as ▁, so the two are one there.
            expected_text = wrapped[1].replace("▁", " ") if kind == "spm" else wrapped[1]
            assert expected_text in vocabulary.decode(ids, special=True)

    check()


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_templates_render(path, tokenizer):
    template = ChatTemplate(path.read_text(), tokenizer)
    text = template.render(HARMLESS)
    assert template.warning is None
    for message in HARMLESS:
        assert message.content in text
    assert len(template.render(HARMLESS, add_generation_prompt=False)) <= len(text) + 20
    assert template.render(HARMLESS[1:], enable_thinking=False)


@pytest.mark.parametrize("name", ["chatml", "role_tags", "header_ids", "inst", "alternating_turns"])
def test_the_next_turn_begins_with_the_last_turn_and_its_answer(name, tokenizer):
    template = load(name, tokenizer)
    conversation = [Message("user", "hi there"), Message("assistant", " I  see.\n"), Message("user", "more")]
    prompt = template.encode(conversation[:1])
    # Ids that encoding the text would not give, with the end token that the model sampled.
    answer = (*(tokenizer.encode(c)[0] for c in " I  see.\n"), next(iter(tokenizer.eog_ids)))
    ids = template.encode(conversation, kept={1: KeptAnswer(answer)})
    expected = [*prompt, *answer[:-1]]
    assert ids[: len(expected)] == expected
    assert special_ids(tokenizer, ids) == special_ids(tokenizer, template.encode(conversation))


def test_old_reasoning_is_dropped_where_the_template_drops_it(tokenizer):
    template = load("thinking", tokenizer)
    encode = lambda text: tuple(tokenizer.encode(text, special=True))  # noqa: E731
    reasoning, answer = encode("<think>\nwell\n</think>"), encode("\n\nYes.")
    kept = KeptAnswer((*reasoning, *answer), len(reasoning))
    turns = [Message("user", "a"), Message("assistant", "Yes.", "well"), Message("user", "b")]
    text = tokenizer.decode(template.encode(turns, kept={1: kept}), special=True)
    assert "well" not in text and "assistant\nYes.<|im_end|>" in text
    assert tokenizer.decode(template.encode(turns), special=True) == text
    last = template.encode(turns[:2], kept={1: kept}, add_generation_prompt=False)
    start = template.encode(turns[:1])
    assert last[: len(start) + len(kept.ids)] == [*start, *kept.ids]


def test_inline_reasoning_stays_with_the_answer(tokenizer):
    template = load("chatml", tokenizer)
    ids = tuple(tokenizer.encode("<think>\nwell\n</think>\n\nYes.", special=True))
    turns = [Message("user", "a"), Message("assistant", "Yes.", "well"), Message("user", "b")]
    start = template.encode(turns[:1])
    assert template.encode(turns, kept={1: KeptAnswer(ids, 5)})[: len(start) + len(ids)] == [*start, *ids]
    assert template.encode(turns)[: len(start) + len(ids)] == [*start, *ids]


def test_raw_reasoning_in_an_answer_is_understood(tokenizer):
    template = load("thinking", tokenizer)
    turns = [
        Message("user", "a"),
        Message("assistant", "<think>\nwell\n</think>\n\nYes."),
        Message("user", "b"),
    ]
    assert "well" not in template.render(turns)


def test_answers_that_a_template_cuts_are_encoded_as_text(tokenizer):
    template = load("cutting", tokenizer)
    turns = [Message("user", "a"), Message("assistant", "Yes."), Message("user", "b")]
    kept = {1: KeptAnswer(tuple(tokenizer.encode("Yes.")))}
    assert template.encode(turns, kept=kept) == template.encode(turns)
    assert template.prompt(turns, kept=kept).starts_in_reasoning
    assert not load("thinking", tokenizer).prompt(turns).starts_in_reasoning


def test_system_text_is_folded_where_the_role_is_refused(tokenizer):
    template = load("alternating_turns", tokenizer)
    assert not template.supports_system and template.warning is None
    assert "user\nS s\n\nu u<end_of_turn>" in template.render(HARMLESS)
    merged = template.render([Message("user", "one"), Message("user", "two")])
    assert "one\n\ntwo" in merged and template.warning is None
    dropping = ChatTemplate(
        "{% for m in messages if m.role != 'system' %}{{ m.content }};{% endfor %}", tokenizer
    )
    assert dropping.render(HARMLESS[:2]) == "S s\n\nu u;"


def test_exactly_one_bos(spm):
    for source in ("{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}",
                   "{{ bos_token }}{{ bos_token }}{{ messages[0].content }}"):  # fmt: skip
        ids = ChatTemplate(source, spm).encode([Message("user", "ab")])
        assert ids[0] == spm.bos_id and ids.count(spm.bos_id) == 1


@pytest.mark.parametrize(
    "source",
    [
        "{% for message in messages %}{{ message",
        "{{ raise_exception('never') }}",
        "{% if false %}a{% endif %}",
        "{{ messages[0].nothing.at.all }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ range(10**9) | list }}",
        "x" * (1 << 21),
    ],
)
def test_a_template_that_fails_is_replaced_and_said(source, tokenizer):
    template = ChatTemplate(source, tokenizer, label="file.gguf")
    prompt = template.prompt(HARMLESS[1:2])
    text = tokenizer.decode(prompt.ids, special=True)
    assert text == "<|im_start|>user\nu u<|im_end|>\n<|im_start|>assistant\n"
    warning = template.warning or prompt.warning
    assert warning and "file.gguf" in warning and "ChatML" in warning


def test_missing_template_is_said(tokenizer, tmp_path):
    assert "ChatML" in (ChatTemplate(None, tokenizer).warning or "")
    path = write_bpe(tmp_path / "v.gguf", "qwen2", "{{ messages[0].content }}")
    file = open_gguf(path)
    assert ChatTemplate.from_gguf(file, tokenizer).render(HARMLESS[1:]) == "u u"
    assert ChatTemplate.from_gguf(file, tokenizer, "other").warning


@pytest.mark.parametrize(
    ("tokens", "said", "text"),
    [
        ((), "plain", "<|endoftext|>S s\n\nUser: u u\nAssistant: a a\nUser: v\nAssistant:"),
        (
            ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
            "Llama 3",
            "<|start_header_id|>system<|end_header_id|>\n\nS s<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nu u<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\na a<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nv<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (
            ("<start_of_turn>", "<end_of_turn>"),
            "Gemma",
            "<start_of_turn>user\nS s\n\nu u<end_of_turn>\n<start_of_turn>model\na a<end_of_turn>\n"
            "<start_of_turn>user\nv<end_of_turn>\n<start_of_turn>model\n",
        ),
        (
            ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"),
            "Harmony",
            "<|start|>system<|message|>S s<|end|><|start|>user<|message|>u u<|end|>"
            "<|start|>assistant<|channel|>final<|message|>a a<|end|><|start|>user<|message|>v<|end|>"
            "<|start|>assistant",
        ),
        (
            ("<|user|>", "<|assistant|>", "<|end|>"),
            "Phi",
            "<|system|>\nS s<|end|>\n<|user|>\nu u<|end|>\n<|assistant|>\na a<|end|>\n"
            "<|user|>\nv<|end|>\n<|assistant|>\n",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 10 else "",
)
def test_without_a_template_the_layout_is_that_of_the_tokens(tokens, said, text, tmp_path):
    path = write_bpe(tmp_path / "v.gguf", "qwen2", controls=tokens, chatml=False)
    tokenizer = Tokenizer.from_gguf(open_gguf(path))
    template = ChatTemplate(None, tokenizer)
    assert said in (template.warning or "")
    assert template.render(HARMLESS) == text
    assert tokenizer.decode(template.encode(HARMLESS), special=True) == text


def test_what_templates_expect(tokenizer):
    template = ChatTemplate(
        "{{ tools | tojson }}{{ {'é': '<b>'} | tojson }}{{ strftime_now('%Y') | length }}"
        "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
        "{{ documents is defined }}{{ documents is none }}{{ tools is defined }}"
        "{{ messages[0].content }}",
        tokenizer,
    )
    tools = [{"name": "f<|im_end|>"}]
    assert (
        template.render([Message("user", "a")], tools=tools)
        == '[{"name": "f<|im_end|>"}]{"é": "<b>"}401FalseTrueTruea'
    )
    assert not special_ids(tokenizer, template.encode([Message("user", "a")], tools=tools))


def test_options_that_nobody_gave_are_neither_defined_nor_anything_but_none(tokenizer):
    ways = ("tools is defined", "tools is not none", "tools", "tools != none", "documents | default(false)")
    source = "".join(f"{{{{ 'given' if {way} else '' }}}}" for way in ways) + "{{ messages[0].content }}"
    assert ChatTemplate(source, tokenizer).render([Message("user", "a")]) == "a"
    tools = [{"name": "f"}]
    assert ChatTemplate(source, tokenizer).render([Message("user", "a")], tools=tools) == "given" * 4 + "a"


def test_generation_blocks_are_their_body_in_a_scope_of_their_own(tokenizer):
    source = (
        "{% set seen = 'no' %}{% for m in messages %}{%- if m.role == 'assistant' -%}\n"
        "  {%- generation -%}{% set seen = 'yes' %}{{ m.content }}|{{ seen }}{%- endgeneration -%}\n"
        "{%- else %}[{{ m.content }}]{% endif %}{% endfor %}{{ seen }}"
    )
    template = ChatTemplate(source, tokenizer)
    assert template.warning is None
    assert template.render(HARMLESS[1:]) == "[u u]a a|yes[v]no"


def test_roles_are_checked(tokenizer):
    with pytest.raises(TemplateError, match="im_end"):
        load("chatml", tokenizer).encode([Message("user<|im_end|>", "a")])
    role = StrEnum("Role", {"USER": "user"}).USER
    assert load("chatml", tokenizer).render([Message(role, "a")]).startswith("<|im_start|>user\na<")
