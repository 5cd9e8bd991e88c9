"""Stop strings over borders of pieces."""

from hypothesis import given
from hypothesis import strategies as st

from engine.tokenizer.stops import StopMatcher


def feed(stops, pieces):
    matcher = StopMatcher(stops)
    out = ""
    for piece in pieces:
        safe, stop = matcher.push(piece)
        out += safe
        if stop is not None:
            return out, stop
    return out + matcher.flush(), None


def by_characters(stops, text):
    """The plain definition: stop at the first character that completes a stop string."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


@given(
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=4),
    st.lists(st.text("abc", max_size=5), max_size=8),
)
def test_any_cutting_gives_the_same(stops, pieces):
    assert feed(stops, pieces) == by_characters(stops, "".join(pieces))


def test_only_what_could_become_a_stop_is_held_back():
    matcher = StopMatcher(["\nUser:", "###"])
    assert matcher.push("Hello ##") == ("Hello ", None)
    assert matcher.push("x\nUs") == ("##x", None)
    assert matcher.push("e of it") == ("\nUse of it", None)
    assert matcher.push("#") == ("", None)
    assert matcher.flush() == "#" and matcher.flush() == ""


def test_nothing_comes_after_a_match():
    matcher = StopMatcher(["END"])
    assert matcher.push("a END b") == ("a ", "END")
    assert matcher.push("more") == ("", None) and matcher.flush() == ""
