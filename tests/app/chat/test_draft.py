"""What is saved of a draft, and when."""

import pytest

from app.chat.conversation import Conversation
from app.chat.draft import Draft, Writing

PASTED = "x\n" * 50


@pytest.fixture
def saved() -> list[str]:
    return []


@pytest.fixture
def conversation() -> Conversation:
    conversation = Conversation()
    conversation.draft = "begun"
    return conversation


@pytest.fixture
def writing(conversation: Conversation, saved: list[str]) -> Writing:
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
    assert writing.draft.text == PASTED
    writing.keep(Draft("another wording"))
    assert saved == [] and writing.draft.text == "another wording"
    writing.take_back("a wording returned", "node")
    assert saved == [] and writing.draft.text == "a wording returned\n\nanother wording"


def test_what_is_no_wording_waits_with_the_draft_while_a_message_is_edited(writing, saved):
    writing.edit("node", "question")
    writing.take_back("returned")
    assert writing.draft.text == "question" and saved == ["returned\n\nbegun"]
    writing.leave_editing()
    assert writing.draft.text == "returned\n\nbegun"


def test_leaving_goes_back_to_what_was_written_before_chips_and_all(writing, saved):
    before = Draft("see [pasted #7: 51 lines]", {7: PASTED})
    writing.keep(before)
    writing.edit("node", "question")
    writing.edit("node", "question")
    writing.leave_editing()
    assert writing.editing is None and writing.draft is before and saved == [before.expanded]


def test_what_is_written_after_another_wording_was_sent_stands_behind_the_draft(writing, saved):
    writing.edit("node", "question")
    writing.leave_editing("more")
    assert writing.draft.text == "begun\n\nmore" and saved == ["begun\n\nmore"]


def test_another_wording_that_could_not_be_sent_is_written_on_and_the_draft_waits(writing, saved):
    writing.take_back("another wording", "node")
    assert writing.editing == "node" and writing.draft.text == "another wording" and saved == []
    writing.leave_editing()
    assert writing.draft.text == "begun"


def test_what_could_not_be_sent_stands_in_front(conversation, writing, saved):
    writing.take_back("returned")
    assert saved == ["returned\n\nbegun"] and writing.draft.text == "returned\n\nbegun"
    writing.put_in_front(["", "asked", "queued"])
    assert conversation.draft == saved[-1] == "asked\n\nqueued\n\nreturned\n\nbegun"


def test_what_is_attached_stands_on_lines_of_its_own_and_comes_back_as_a_chip():
    block = "File a.md:\n```md\nx\n```"
    draft = Draft("see [file #1 a.md: 22 B] and [pasted #2: 1 line]", {1: block, 2: "more"})
    assert draft.expanded == f"see \n\n{block}\n\n and [pasted #2: 1 line]".replace(
        "[pasted #2: 1 line]", "more"
    )
    folded = Draft.folded(draft.expanded)
    assert folded.text == "see \n\n[file #1 a.md: 22 B]\n\n and more"
    assert folded.expanded == draft.expanded


def test_a_chip_that_stands_for_nothing_is_text():
    assert (
        Draft("[file #1 a.md: 22 B] [pasted #7: 3 lines]").expanded
        == "[file #1 a.md: 22 B] [pasted #7: 3 lines]"
    )
