"""Ranks of merges, which are read in pieces."""

from engine.tokenizer.merging import merge_symbols, rank_of_merges


def test_of_equal_merges_the_first_counts_however_many_lie_between() -> None:
    others = [f"x{number} y" for number in range(9_000)]
    merges = ["a b", *others, "a b", "b c"]
    rank = rank_of_merges(merges, {"ab", "bc", *(other.replace(" ", "") for other in others)})
    assert rank("a", "b") == 0 and rank("b", "c") == len(merges) - 1
    assert [rank(f"x{number}", "y") for number in range(9_000)] == [*range(1, 9_001)]
    assert rank("a", "c") is None
    assert merge_symbols("abc", rank) == ["ab", "c"]


def test_merges_to_what_is_no_token_never_apply() -> None:
    rank = rank_of_merges(["a b", "b c"], {"bc"})
    assert rank("a", "b") is None and merge_symbols("abc", rank) == ["a", "bc"]
    assert rank_of_merges([], set())("a", "b") is None
