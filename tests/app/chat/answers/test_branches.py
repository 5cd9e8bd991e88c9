"""A chat's tree as rows."""

from app.chat.answers.branches import branches_of
from app.chat.conversation import Conversation
from tests.app.chat.test_conversation import talk


def rows(conversation: Conversation) -> list[tuple[str, str, int, bool]]:
    return [(b.guide, b.first.text, b.messages, b.shown) for b in branches_of(conversation)]


def test_a_chat_without_branches_is_one_row():
    conversation = Conversation()
    assert branches_of(conversation) == []
    talk(conversation, "one", "eins")
    talk(conversation, "two", "zwei")
    assert rows(conversation) == [("", "one", 4, True)]


def test_every_branch_has_a_row_below_the_one_that_it_parts_from():
    conversation = Conversation()
    first = talk(conversation, "one", "eins")
    second = talk(conversation, "two", "zwei")
    again = conversation.regenerate(second.id)
    conversation.append(again.id, "2")
    conversation.finish(again.id)
    other = conversation.regenerate(first.id)
    conversation.append(other.id, "1")
    conversation.finish(other.id)
    assert rows(conversation) == [
        ("", "one", 1, True),
        ("├─ ", "eins", 2, False),
        ("│  ├─ ", "zwei", 1, False),
        ("│  └─ ", "2", 1, False),
        ("└─ ", "1", 1, True),
    ]
    conversation.select(branches_of(conversation)[2].last.id)
    assert [node.text for node in conversation.path()] == ["one", "eins", "two", "zwei"]


def test_a_long_chat_with_an_alternative_at_every_turn_is_listed():
    conversation = Conversation()
    for number in range(300):
        node = talk(conversation, f"question {number}", "answer")
        conversation.regenerate(node.id)
        conversation.finish(conversation.leaf)
    found = branches_of(conversation)
    assert len(found) == 601
    assert max(len(branch.guide) for branch in found) <= 3 * 13
