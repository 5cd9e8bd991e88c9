import pytest

from app.chat.conversation import NEW_TITLE, AnswerStats, Conversation, Role, Status, title_from
from app.chat.reasoning import Part, splitter_for
from app.writing.blocks import fenced, gathered
from engine import Priority, SamplingParams, TextDelta


def talk(conversation, question, answer, ids=(1, 2)):
    conversation.add_user(question)
    node = conversation.begin_answer("m")
    conversation.append(node.id, answer, ids)
    conversation.finish(node.id)
    return node


def texts(conversation):
    return [node.text for node in conversation.path()]


def test_a_talk_is_a_path():
    conversation = Conversation()
    talk(conversation, "one", "eins")
    talk(conversation, "two", "zwei")
    assert texts(conversation) == ["one", "eins", "two", "zwei"]
    assert [node.role for node in conversation.path()] == [Role.USER, Role.ASSISTANT] * 2
    assert conversation.title == "one"


def test_streaming_keeps_ids_and_splits_reasoning():
    conversation = Conversation()
    conversation.add_user("q")
    node = conversation.begin_answer("m")
    assert node.status is Status.STREAMING
    pieces = []
    for number, text in enumerate(["<th", "ink>", "hm", "</think>", "\n\n", "Yes", "."]):
        pieces += conversation.append(node.id, text, [number])
    pieces += conversation.finish(node.id, Status.COMPLETE, stats=AnswerStats(7, 50.0, 12.0))
    assert (node.reasoning, node.text) == ("hm", "Yes.")
    assert pieces == [(Part.REASONING, "hm"), (Part.ANSWER, "Yes"), (Part.ANSWER, ".")]
    assert node.token_ids == list(range(7))
    assert node.reasoning_tokens == 5
    assert node.stats.tokens == 7
    assert node.status is Status.COMPLETE


def test_reasoning_opened_by_the_template_counts_from_the_first_id():
    conversation = Conversation()
    conversation.add_user("q")
    node = conversation.begin_answer("m", splitter_for(opened=True))
    conversation.append(node.id, "hm", [5])
    conversation.append(node.id, "</think>", [6])
    conversation.append(node.id, "Yes", [7])
    assert (node.reasoning, node.text, node.reasoning_tokens) == ("hm", "Yes", 2)


def test_ids_that_come_together_are_counted_one_by_one():
    conversation = Conversation()
    conversation.add_user("q")
    node = conversation.begin_answer("m", splitter_for(opened=True))
    words = ["h", "m", "</think>", "\n\n", "Yes", ", it", " is"]
    pieces = conversation.stream(node.id, [TextDelta(word, (n,)) for n, word in enumerate(words)])
    assert pieces == [(Part.REASONING, "hm"), (Part.ANSWER, "Yes, it is")]
    assert (node.token_ids, node.reasoning_tokens) == (list(range(7)), 4)


def test_empty_reasoning_counts_its_tags():
    conversation = Conversation()
    conversation.add_user("q")
    node = conversation.begin_answer("m")
    for number, text in enumerate(["<think>", "\n\n", "</think>", "\n\n", "Yes"]):
        conversation.append(node.id, text, [number])
    assert (node.reasoning, node.text, node.reasoning_tokens) == ("", "Yes", 4)


def test_reasoning_in_a_single_delta_is_counted():
    conversation = Conversation()
    conversation.add_user("q")
    node = conversation.begin_answer("m")
    conversation.append(node.id, "<think></think>", [1, 2, 3])
    conversation.append(node.id, "Yes", [4])
    assert node.reasoning_tokens == 3


def test_a_stop_inside_a_tag_loses_nothing():
    conversation = Conversation()
    conversation.add_user("q")
    node = conversation.begin_answer("m")
    assert conversation.append(node.id, "<thin", [1]) == []
    assert conversation.finish(node.id, Status.STOPPED) == [(Part.ANSWER, "<thin")]
    assert (node.text, node.status) == ("<thin", Status.STOPPED)


def test_regenerate_adds_a_sibling_and_select_goes_back():
    conversation = Conversation()
    first = talk(conversation, "q", "a")
    talk(conversation, "more", "b")
    second = conversation.regenerate(first.id)
    conversation.append(second.id, "A", [9])
    conversation.finish(second.id)
    assert second.model == "m"
    assert texts(conversation) == ["q", "A"]
    assert conversation.siblings(second.id) == [first, second]
    conversation.select(first.id)
    assert texts(conversation) == ["q", "a", "more", "b"]


def test_edit_adds_a_branch_and_keeps_the_old_one():
    conversation = Conversation()
    answer = talk(conversation, "q", "a")
    question = conversation.path()[0]
    conversation.leaf = question.parent
    edited = conversation.add_user("Q")
    assert texts(conversation) == ["Q"]
    assert conversation.siblings(edited.id) == [question, edited]
    conversation.select(question.id)
    assert conversation.leaf == answer.id


def test_fork_copies_a_path_with_ids_of_its_own():
    conversation = Conversation(system_prompt="S", model_path="/m")
    first = talk(conversation, "q", "a", ids=[4, 5])
    talk(conversation, "more", "b")
    fork = conversation.fork(first.id)
    assert texts(fork) == ["q", "a"]
    assert not set(fork.nodes) & set(conversation.nodes)
    assert (fork.system_prompt, fork.model_path) == ("S", "/m")
    assert fork.path()[-1].token_ids == [4, 5]
    fork.path()[-1].token_ids.append(6)
    assert first.token_ids == [4, 5]


def test_a_fork_takes_the_settings_along_and_numbers_its_title():
    sampling = SamplingParams(temperature=0.1)
    conversation = Conversation(title="Foxes", sampling=sampling, max_tokens=3, priority=Priority.HIGH)
    fork = conversation.fork()
    assert (fork.sampling, fork.max_tokens, fork.priority) == (sampling, 3, Priority.HIGH)
    assert fork.title == "Foxes (fork)"
    assert fork.fork().title == "Foxes (fork 2)"
    assert fork.fork().fork().title == "Foxes (fork 3)"


def test_fork_of_a_running_answer_is_stopped():
    conversation = Conversation()
    conversation.add_user("q")
    node = conversation.begin_answer("m")
    conversation.append(node.id, "half", [1])
    assert conversation.fork().path()[-1].status is Status.STOPPED
    assert node.status is Status.STREAMING


def test_wrong_roles_are_refused():
    conversation = Conversation()
    talk(conversation, "q", "a")
    with pytest.raises(ValueError, match="cannot be regenerated"):
        conversation.regenerate(conversation.path()[0].id)


def test_titles():
    assert title_from("  ") == NEW_TITLE
    assert title_from("one\n two") == "one two"
    assert title_from("word " * 30).endswith("…")
    assert len(title_from("word " * 30)) <= 40
    assert len(title_from("x" * 500)) <= 40


@pytest.mark.parametrize(
    ("text", "title"),
    [
        (f"{fenced('file', 'notes.md', 'a long text')}\n\nWhat is missing?", "What is missing?"),
        (f"Sum up\n\n{fenced('file', 'a.py', 'x = 1')}\n\nin one line", "Sum up in one line"),
        (fenced("file", "notes.md", "only the file"), "notes.md"),
        (fenced("chat", "Old terns", "User: hi"), "Old terns"),
        (f"{gathered('src', [fenced('file', 'src/a.py', 'x')])}\n\nWhy?", "Why?"),
        ("File notes.md:\nno fence follows", "File notes.md: no fence follows"),
    ],
)
def test_a_chat_is_titled_by_what_its_reader_wrote(text, title):
    chat = Conversation()
    chat.add_user(text)
    assert chat.title == title
