"""What a message costs is counted piece by piece, once, and said in words that hold."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat.conversation import AnswerStats, Conversation
from app.chat.draft import Draft, chip
from app.chat.message_cost import MessageCost, TokenCounter, kv_bytes, pieces_of, reading_speed
from engine import ModelStats
from engine.api.stats import KVGroupStats
from tests.support.fakes import FakeTokenizer

GOING = threading.Event()
TEXT = "".join(f"line {number} of a text {'x' * (number % 13)}\n" for number in range(3000))


@given(st.text(alphabet="ab\n \u2028é", max_size=200), st.integers(0, 9000))
def test_pieces_are_the_text(text, width):
    whole = text + "y" * width + text
    assert "".join(pieces_of(whole)) == whole
    assert max(map(len, pieces_of(whole)), default=0) <= 3 * 4096


def test_a_change_in_a_long_text_counts_a_few_lines_again():
    tokenizer = FakeTokenizer()
    counter = TokenCounter(tokenizer)
    assert counter.count(Draft(TEXT), GOING) == len(TEXT.split())
    first = sum(map(len, tokenizer.counted))
    tokenizer.counted.clear()
    middle = len(TEXT) // 2
    changed = f"{TEXT[:middle]} two words {TEXT[middle:]}"
    assert counter.count(Draft(changed), GOING) == pytest.approx(len(changed.split()), abs=2)
    assert sum(map(len, tokenizer.counted)) < first / 20
    tokenizer.counted.clear()
    assert counter.count(Draft(changed), GOING) and not tokenizer.counted


def test_a_chip_counts_as_what_it_stands_for():
    counter = TokenCounter(FakeTokenizer())
    draft = Draft(f"see {chip(1, TEXT)}", {1: TEXT})
    assert counter.count(draft, GOING) == len(TEXT.split()) + 1


def test_counting_ends_when_it_is_stopped():
    stopped = threading.Event()
    stopped.set()
    tokenizer = FakeTokenizer()
    assert TokenCounter(tokenizer).count(Draft(TEXT), stopped) is None and not tokenizer.counted


@pytest.mark.parametrize(
    ("cost", "words", "warns"),
    [
        (MessageCost(499), "", False),
        (MessageCost(3200), "3,200 tokens", False),
        (
            MessageCost(3200, 96_000_000, 4.1, 0.3),
            "3,200 tokens · 96 MB KV · reads in about 4 s",
            False,
        ),
        (MessageCost(600, 1_000, 0.2, 0.85), "600 tokens · 1 kB KV · fills 85% of the context", True),
        (
            MessageCost(9000, 1_000, 5.0, 1.2, room=800),
            "9,000 tokens, room for 800: it will come back unsent",
            True,
        ),
    ],
)
def test_what_is_said(cost, words, warns):
    assert (cost.words, cost.warns) == (words, warns)


def answer(prompt, ttft, cached=0):
    conversation = Conversation()
    conversation.add_user("a")
    node = conversation.begin_answer("m")
    node.stats = AnswerStats(1, 1.0, ttft, cached, prompt)
    return node


def test_prompts_that_were_read_tell_how_fast_others_are():
    assert reading_speed([]) is None
    assert reading_speed([answer(1000, None), answer(1000, 10.0, cached=990)]) is None
    read = [answer(500, 1000.0), answer(1100, 1000.0, cached=100), answer(300, 1000.0)]
    assert reading_speed(read) == 500.0


def test_layers_with_a_window_keep_no_more():
    groups = (KVGroupStats(0, 100, 0, 0), KVGroupStats(512, 1000, 0, 0))
    model = ModelStats("m", "m", 0, 1100, 8192, groups)
    assert kv_bytes(model, 100) == 110_000
    assert kv_bytes(model, 2000) == 200_000 + 512_000
    assert kv_bytes(ModelStats("m", "m", 0, 7, 8192), 10) == 70
