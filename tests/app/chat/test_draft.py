"""What is saved of a draft, and when."""

import pytest

from app.chat.conversation import Conversation
from app.chat.draft import Draft, Writing

PASTED = "x\n" * 50


@pytest.fixture
def saved() -> list[str]:
    return []


@pytest.fixture
def writing(saved: list[str]) -> Writing:
    conversation = Conversation()
    conversation.draft = "begun"
    return Writing(conversation, lambda: saved.append(conversation.draft))


def test_it_begins_with_what_was_saved_and_saves_changes_once(writing, saved):
    assert writing.draft == Draft("begun")
    writing.keep(Draft("begun"))
    assert saved == []
    folded = Draft("see [pasted #1: 51 lines]", {1: PASTED})
    writing.keep(folded)
    writing.keep(folded)
    assert writing.draft is folded and saved == [f"see {PASTED}"]


def test_another_wording_of_a_message_is_never_saved(writing, saved):
    writing.edit("node", PASTED)
    assert writing.draft.text == "[pasted #1: 51 lines]"
    writing.keep(Draft("another wording"))
    assert saved == [""] and writing.draft.text == "another wording"
    writing.take_back("returned")
    assert saved == [""] and writing.draft.text == "returned\n\nanother wording"


def test_leaving_goes_back_to_what_is_saved(writing):
    writing.edit("node", "question")
    writing.leave_editing()
    assert writing.editing is None and writing.draft == Draft("begun")


def test_what_could_not_be_sent_stands_in_front(writing, saved):
    writing.take_back("returned")
    assert saved == ["returned\n\nbegun"]
    writing.put_in_front(["", "asked", "queued"])
    writing.leave_editing()
    assert writing.draft.text == "asked\n\nqueued\n\nreturned\n\nbegun"
