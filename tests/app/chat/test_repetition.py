"""An answer that repeats itself is noticed; code, lists and tables are not taken for that."""

import re
from pathlib import Path

import pytest

from app.chat.answers.repetition import LINES, RepetitionWatch

ROOT = Path(__file__).parents[3]
_TOKEN = re.compile(r" ?\w+|\s|[^\w\s]")


class Stream:
    """Texts as a tokenizer might cut them, watched."""

    def __init__(self) -> None:
        self.watch = RepetitionWatch()
        self.ids: dict[str, int] = {}

    def ends_at(self, text: str) -> int | None:
        """After how many tokens the watch barks."""
        for number, token in enumerate(_TOKEN.findall(text), 1):
            if self.watch.take((self.ids.setdefault(token, len(self.ids)),), token):
                return number
        return None


def ends_at(text: str) -> int | None:
    return Stream().ends_at(text)


SENTENCE = " The tern sat on the mast and looked down at me."


def test_the_same_eight_tokens_four_times_over_are_noticed_and_three_times_are_not():
    eight = " one two three four five six seven eight"
    assert ends_at(eight * 4) == 32
    assert ends_at("well" + eight * 4) == 33
    assert ends_at(eight * 3 + " and that is all there is to say of this") is None


def test_a_shorter_loop_is_noticed_after_as_many_tokens():
    assert ends_at("so" + " ha" * 60) == 33
    assert ends_at("intro" + " left right" * 40) is not None


def test_one_line_ten_times_is_noticed_however_short_and_nine_times_are_not():
    assert ends_at("x y\n" * LINES) is not None
    rows = [f"{n}: a" for n in range(4)]
    assert ends_at("\n".join(rows) + "\n" + "go\n\n" * (LINES - 1) + "stop\n") is None


@pytest.mark.parametrize(
    "text",
    [
        "| a | b |\n|---|---|\n" + "|---" * 80 + "|\n",
        "\n" * 200,
        "code:\n\n```c\n" + "        }\n" * 60 + "```\n",
        "    \n" * 100,
        "}\n" * 60,
        "-----" * 60,
        "0, " * 200,
        "```html\n<tr>\n" + "  <td></td>\n" * 12 + "</tr>\n```\n",
        "".join(f"- item {n} of the list, with some words behind it\n" for n in range(60)),
        "".join(f"| {n} | yes | no | maybe | yes |\n" for n in range(60)),
        "| yes | no | maybe | yes | no |\n" * 8,
        "```\n" + "    return None\n" * 12 + "```\n",
    ],
)
def test_code_lists_and_tables_are_no_repetition(text):
    assert ends_at(text) is None


@pytest.mark.parametrize(
    "path", ["README.md", "BENCHMARKS.md", "app/chat/session.py", "app/settings/actions.py"]
)
def test_real_texts_are_no_repetition(path):
    assert ends_at((ROOT / path).read_text()) is None


def test_code_that_never_ends_is_noticed_in_the_end():
    assert ends_at("```py\n" + "print('hello world again')\n" * 60) is not None


def test_what_is_let_go_on_does_not_end_at_once_again_and_something_new_does():
    stream = Stream()
    assert stream.ends_at(SENTENCE * 5) is not None
    stream.watch.allow()
    assert stream.ends_at(SENTENCE * 20) is None
    assert stream.ends_at(" At last something else.") is None
    assert stream.ends_at(" Now this is another thing that is told over and over." * 6) is not None


def test_a_line_that_is_let_go_on_does_not_end_at_once_again():
    stream = Stream()
    assert stream.ends_at("no\n" * 12) is not None
    stream.watch.allow()
    assert stream.ends_at("no\n" * 30) is None
    assert stream.ends_at("yes\n" * 30) is not None


def test_a_token_costs_as_much_at_the_end_of_a_long_answer_as_at_its_beginning():
    watch = RepetitionWatch()
    for number in range(30_000):
        watch.take((number * 7919 % 6007,), " a")
    assert len(watch._tokens._grams) < 5000 and len(watch._tokens._ids) < 5000
