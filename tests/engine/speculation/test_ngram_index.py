"""The longest earlier match of a text's end, against a search of the whole text."""

from hypothesis import given
from hypothesis import strategies as st

from engine.speculation.ngram_index import CANDIDATES, LONGEST, NgramIndex, continue_from

TEXTS = st.lists(st.integers(0, 3), max_size=80)


def common(ids: list[int], a: int, b: int) -> int:
    """Length of the common end of ids[:a] and ids[:b], up to what is compared."""
    return next((n for n in range(min(a, LONGEST)) if ids[a - 1 - n] != ids[b - 1 - n]), min(a, LONGEST))


def search(ids: list[int]) -> tuple[int, int]:
    """The definition."""
    pairs = [after for after in range(2, len(ids)) if ids[after - 2 : after] == ids[-2:]][::-1]
    lengths = [(common(ids, after, len(ids)), after) for after in pairs[:CANDIDATES]]
    return max(lengths, default=(0, 0))


@given(TEXTS)
def test_the_longest_of_the_latest_places_is_found_as_the_text_grows(ids: list[int]):
    index = NgramIndex()
    for count in range(len(ids) + 1):
        index.extend(ids, count - 1)
        assert index.match(ids[:count]) == (search(ids[:count]) if count > 1 else (0, 0))


@given(TEXTS, st.lists(st.integers(0, 90), max_size=6))
def test_pieces_give_the_index_of_the_whole(ids: list[int], ends: list[int]):
    pieces, whole = NgramIndex(), NgramIndex()
    for end in [*sorted(min(end, len(ids) - 1) for end in ends), len(ids) - 1]:
        pieces.extend(ids, end)
    whole.extend(ids, len(ids) - 1)
    assert (pieces.seen, pieces.match(ids)) == (whole.seen, whole.match(ids))


@given(TEXTS.filter(lambda ids: len(ids) > 2), st.data())
def test_a_draft_follows_the_text_and_then_itself(ids: list[int], data):
    after, count = data.draw(st.integers(1, len(ids) - 1)), data.draw(st.integers(1, 20))
    text = list(ids)
    for _ in range(count):
        text.append(text[after + len(text) - len(ids)])
    assert continue_from(ids, after, count) == text[len(ids) :]


def test_only_what_another_token_follows_is_found():
    index = NgramIndex()
    ids = [5, 6, 7, 5, 6]
    index.extend(ids, len(ids) - 1)
    assert index.match(ids) == (2, 2)
    assert index.match([5]) == index.match([]) == (0, 0)
