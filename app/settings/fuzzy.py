"""Finding by a few letters: how well a text fits what was typed."""

_AT_WORD, _WITHIN, _SCATTERED = 1000.0, 500.0, 100.0
_LONG = 1000
"""Letters: how far ahead a word is decides only between texts that fit equally well."""


def fit_score(query: str, text: str) -> float:
    """Return how well a text fits, 0 where it does not.

    Every word of the query must be in the text, in any order: at the beginning of a word is best, then
    within one, then its letters with others between them, the fewer the better; further ahead is better.
    """
    folded = text.casefold()
    scores = [_word_score(word, folded) for word in query.casefold().split()]
    return sum(scores) if all(scores) else 0.0


def _word_score(word: str, text: str) -> float:
    found = [at for at in range(len(text)) if text.startswith(word, at)]
    for at in found:
        if at == 0 or not text[at - 1].isalnum():
            return _AT_WORD - at / _LONG
    if found:
        return _WITHIN - found[0] / _LONG
    span = _shortest_span(word, text)
    return _SCATTERED * len(word) / span if span else 0.0


def _shortest_span(word: str, text: str) -> int:
    """Return over how few letters those of a word are scattered, 0 where they are not there in order."""
    spans = []
    for start in (at for at, letter in enumerate(text) if letter == word[0]):
        at = start
        for letter in word[1:]:
            at = text.find(letter, at + 1)
            if at < 0:
                break
        else:
            spans.append(at - start + 1)
    return min(spans, default=0)
