"""Finding models by a few letters, and how they are sorted."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.models.fit.speeds import Speed
from app.models.listed.listing import ModelFile
from app.models.listed.notes import Notes
from app.models.listed.order import Known, Order, sort_models
from app.settings.fuzzy import fit_score

TITLES = [
    "gemma-3-270m-q4_k_m",
    "Qwen3-0.6B-Q4_K_M",
    "Qwen3-4B-Instruct-Q8_0",
    "SmolLM2-135M-Instruct.Q4_1",
    "tern-q4b-wen",
]


def found(query):
    scored = [(fit_score(query, title), title) for title in TITLES]
    return [title for score, title in sorted(scored, key=lambda pair: -pair[0]) if score]


@pytest.mark.parametrize(
    ("query", "titles"),
    [
        ("smol", [TITLES[3]]),
        ("SMINS", [TITLES[3]]),
        ("qwen 4b", [TITLES[2], TITLES[4]]),
        ("4b qwen", [TITLES[2], TITLES[4]]),
        ("qwn", [TITLES[1], TITLES[2], TITLES[4]]),
        ("wen", [TITLES[4], TITLES[1], TITLES[2]]),
        ("q4 instr", [TITLES[3], TITLES[2]]),
        ("gemma qwen", []),
        ("zz", []),
    ],
)
def test_what_a_few_letters_find(query, titles):
    assert found(query) == titles


def test_letters_that_stand_together_come_before_scattered_ones():
    assert fit_score("abc", "x abc") > fit_score("abc", "xabc") > fit_score("abc", "a-b-c")
    assert fit_score("abc", "a-b-c") > fit_score("abc", "a--b--c") > fit_score("abc", "acb") == 0


def test_a_long_word_of_one_letter_is_looked_for_quickly():
    assert fit_score("a" * 200, "a" * 5000 + "b") > 0
    assert fit_score("a" * 200 + "c", "a" * 5000 + "b") == 0


MODELS = [
    ModelFile(Path("/m/b"), "b", 30, modified=2.0),
    ModelFile(Path("/m/C"), "C", 10, modified=3.0),
    ModelFile(Path("/m/a"), "a", 20, modified=1.0),
    ModelFile(Path("/m/0"), "0", 90, problem="broken"),
]


def titles(known, order):
    return "".join(model.title for model in sort_models(MODELS, known, order))


def test_every_order_has_what_cannot_be_opened_last_and_favourites_first():
    speeds = {Path("/m/C"): Speed(5.0, 0.0, 1, "cpu", 0.0), Path("/m/a"): Speed(9.0, 0.0, 1, "cpu", 0.0)}
    known = Known(Notes(used={Path("/m/a"): 7.0}), speeds)
    sorted_by = {order: titles(known, order) for order in Order}
    assert sorted_by == {
        Order.USED: "abC0", Order.NAME: "abC0", Order.SIZE: "baC0", Order.SPEED: "aCb0", Order.DATE: "Cba0",
    }  # fmt: skip
    marked = replace(known, notes=Notes(favourites=frozenset({Path("/m/C"), Path("/m/0")})))
    assert titles(marked, Order.SIZE) == "Cba0"


def test_orders_follow_each_other_round_and_an_unknown_one_is_the_usual():
    assert [order.following for order in Order] == [*list(Order)[1:], Order.USED]
    assert Known(Notes(order="size")).order is Order.SIZE
    assert Known(Notes(order="colour")).order is Known().order is Order.USED
