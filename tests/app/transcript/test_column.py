"""Where a word stands that was searched for."""

from app.transcript.column import Column
from app.transcript.message import MessageRows, MessageView


def column(text: str, width: int = 40) -> Column:
    found = Column()
    found.width = width
    found.replace([MessageRows(MessageView("1", "assistant", text, footer="12 tokens", title="Tern 7B"))])
    return found


def shown(found: Column, words: list[str]) -> tuple[str, str]:
    place, (start, end) = found.find("1", words)
    text = found.item("1").rows[found.row(place)].text
    return text, text[start:end]


def test_a_word_is_found_in_the_text_not_in_what_stands_around_it():
    found = column("a **Tern** flies\n\nwith tokens")
    assert shown(found, ["tern"]) == ("a Tern flies", "Tern")
    assert shown(found, ["nothing", "token"]) == ("with tokens", "token")


def test_a_message_that_does_not_show_the_words_is_found_by_its_beginning():
    assert shown(column("one\n\ntwo"), ["three", "7B", "12"]) == ("Tern 7B", "")
