"""Chats into files and back: nothing is lost, nothing hostile gets through, no chat comes half."""

import json
import zipfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.chat.conversation import Conversation, Role
from app.chat.marks import Marks
from app.chat.votes import Vote
from app.exchange import reading
from app.exchange.formats import Format, file_stem, free_path, json_text, text_of
from app.exchange.kept import ChatFileError, KeptChat
from app.exchange.reading import read_chats
from tests.app.history.talks import same, talk, tool_talk


def branched() -> Conversation:
    chat = talk("Birds")
    chat.regenerate(chat.leaf)
    chat.append(chat.leaf, "another answer", [5])
    chat.finish(chat.leaf)
    chat.draft = "and a gull?"
    chat.updated += 5
    return chat


def read(tmp_path, contents):
    path = tmp_path / "file.json"
    path.write_text(contents if isinstance(contents, str) else json.dumps(contents))
    return list(read_chats(path))


def test_the_own_format_loses_nothing(tmp_path):
    kept = KeptChat(branched(), Marks(True, True, ("sea", "work")))
    [found] = read(tmp_path, json_text([kept]))
    same(found.conversation, kept.conversation)
    assert found.conversation.created == kept.conversation.created
    assert found.conversation.updated == kept.conversation.updated
    assert found.marks == kept.marks


def test_the_own_format_keeps_calls_of_tools(tmp_path):
    chat = tool_talk()
    [found] = read(tmp_path, json_text([KeptChat(chat)]))
    same(found.conversation, chat)
    assert found.conversation.tools == ("files",)


def test_the_own_format_keeps_votes(tmp_path):
    chat = talk()
    chat.last_answer().votes = {"b" * 32: Vote.WORSE}
    [found] = read(tmp_path, json_text([KeptChat(chat)]))
    assert found.conversation.last_answer().votes == {"b" * 32: "worse"}


def own(tmp_path, **changes):
    """A file of two chats, the first of which has something changed."""
    record = json.loads(json_text([KeptChat(branched()), KeptChat(talk("Whole"))]))
    first = record["chats"][0]
    message = changes.pop("message", {})
    first["messages"][1] |= message
    first |= changes
    return read(tmp_path, record)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"message": {"role": "robot"}}, "messages[1]: role is none of"),
        (
            {"message": {"calls": [{"name": 3}]}},
            "messages[1]: calls[0]: name and arguments are those",
        ),
        ({"message": {"votes": {"a": "best"}}}, "messages[1]: votes is not one of better, worse, even"),
        ({"message": {"calls": 3}}, "messages[1]: calls is no list"),
        ({"tools": [3]}, "tools is no list of texts"),
        ({"message": {"parent": "x"}}, "messages[1]: parent names no message before it"),
        ({"message": {"token_ids": [-1]}}, "token_ids is no list of whole numbers"),
        ({"message": {"text": 5}}, "text is no text"),
        ({"message": {"reasoning_tokens": 99}}, "reasoning_tokens is more"),
        ({"leaf": "x"}, "leaf names no message"),
        ({"id": ""}, "id is no id"),
        ({"sampling": {"temperature": "hot"}}, "sampling"),
        ({"messages": 5}, "messages is no list"),
        ({"priority": "first"}, "priority is none of"),
        ({"created": True}, "created is no number"),
    ],
)
def test_a_chat_with_anything_wrong_is_refused_whole_and_the_others_are_read(tmp_path, changes, said):
    refused, whole = own(tmp_path, **changes)
    assert isinstance(refused, ChatFileError)
    assert said in str(refused) and "“Birds”" in str(refused) and "\n" not in str(refused)
    assert whole.conversation.title == "Whole"


def gpt_message(key, parent, children, role, text, **more):
    message = {"author": {"role": role}, "content": {"content_type": "text", "parts": [text]}}
    message |= {"create_time": 1_700_000_000.5, "metadata": {"model_slug": "gpt-4o"}} | more
    return {"id": key, "message": message, "parent": parent, "children": children}


def gpt_chat():
    thoughts = {"content_type": "thoughts", "thoughts": [{"summary": "Birds", "content": "A tern is one."}]}
    mapping = [
        {"id": "root", "message": None, "parent": None, "children": ["sys"]},
        gpt_message(
            "sys", "root", ["q"], "system", "", metadata={"is_visually_hidden_from_conversation": True}
        ),
        gpt_message("q", "sys", ["t", "other"], "user", "What is a tern?"),
        gpt_message("t", "q", ["call"], "assistant", "", content=thoughts),
        gpt_message("call", "t", ["tool"], "assistant", "search()", recipient="browser"),
        gpt_message("tool", "call", ["a"], "tool", "found it"),
        gpt_message("a", "tool", [], "assistant", "A sea bird."),
        gpt_message("other", "q", [], "assistant", "No idea."),
    ]
    nodes = {node["id"]: node for node in mapping}
    return {
        "title": "Tern",
        "create_time": 1.7e9,
        "update_time": 1.7e9 + 60,
        "conversation_id": "c1",
        "mapping": nodes,
        "current_node": "a",
    }


def test_a_chat_of_chatgpt_keeps_its_branches_and_loses_its_tools(tmp_path):
    [found] = read(tmp_path, [gpt_chat()])
    chat = found.conversation
    assert chat.title == "Tern" and chat.created == 1.7e9 and chat.updated == 1.7e9 + 60
    question, answer = chat.path()
    assert (question.role, question.text) == (Role.USER, "What is a tern?")
    assert (answer.text, answer.reasoning, answer.model) == ("A sea bird.", "Birds\nA tern is one.", "gpt-4o")
    assert [node.text for node in chat.siblings(answer.id)] == ["A sea bird.", "No idea."]


def test_the_same_chat_of_a_later_export_has_the_same_ids(tmp_path):
    [once], [again] = read(tmp_path, [gpt_chat()]), read(tmp_path, [gpt_chat()])
    same(once.conversation, again.conversation)


def test_the_zip_of_chatgpt_is_read(tmp_path):
    path = tmp_path / "export.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("chat.html", "x")
        archive.writestr("conversations.json", json.dumps([gpt_chat()]))
    [found] = read_chats(path)
    assert found.conversation.title == "Tern"
    raw = bytearray(path.read_bytes())
    raw[-60:-30] = b"\xff" * 30
    path.write_bytes(raw)
    with pytest.raises(ChatFileError, match=r"export\.zip"):
        list(read_chats(path))


def webui_chat():
    fold = '<details type="reasoning" done="true">\n<summary>Thought</summary>\n&gt; why\n> not\n</details>\n'
    messages = {
        "1": {
            "id": "1",
            "parentId": None,
            "childrenIds": ["2", "3"],
            "role": "user",
            "content": "Tern?",
            "timestamp": 1_700_000_000,
        },
        "2": {"id": "2", "parentId": "1", "childrenIds": [], "role": "assistant", "content": "No."},
        "3": {
            "id": "3",
            "parentId": "1",
            "childrenIds": [],
            "role": "assistant",
            "model": "qwen3:8b",
            "content": fold + "A bird.",
        },
    }
    inner = {
        "history": {"messages": messages, "currentId": "3"},
        "tags": ["Sea Birds"],
        "params": {"system": "S"},
    }
    return {
        "id": "w1",
        "title": "Tern",
        "chat": inner,
        "pinned": True,
        "created_at": 1_700_000_000_000_000_000,
    }


def test_a_chat_of_open_webui_keeps_branches_reasoning_and_tags(tmp_path):
    [found] = read(tmp_path, [webui_chat()])
    chat = found.conversation
    assert found.marks == Marks(True, False, ("sea-birds",))
    assert chat.system_prompt == "S" and chat.created == 1.7e9
    _, answer = chat.path()
    assert (answer.text, answer.reasoning, answer.model) == ("A bird.", "> why\nnot", "qwen3:8b")
    assert len(chat.nodes) == 3


def test_an_old_chat_of_open_webui_without_a_tree_is_read(tmp_path):
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [{"type": "text", "text": "b"}]},
    ]
    [found] = read(tmp_path, [{"id": "w", "title": "T", "chat": {"messages": messages}}])
    assert [node.text for node in found.conversation.path()] == ["a", "b"]


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        ("", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ('{"a": NaN}', "NaN is no number"),
        ("[]", "format is not known"),
        ("5", "format is not known"),
        ('{"format": "tui-chat", "version": 2, "chats": []}', "version 2 of the format"),
    ],
)
def test_what_is_no_file_of_chats_is_named_in_one_line(tmp_path, contents, said):
    with pytest.raises(ChatFileError, match=said) as caught:
        read(tmp_path, contents)
    assert "file.json" in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MOST_BYTES", 100)
    path = tmp_path / "large.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("conversations.json", " " * 10_000)
    with pytest.raises(ChatFileError, match="larger than"):
        list(read_chats(path))


_NAMES = st.sampled_from(
    [
        "id",
        "title",
        "mapping",
        "chat",
        "history",
        "messages",
        "parent",
        "parentId",
        "children",
        "childrenIds",
        "message",
        "author",
        "role",
        "content",
        "parts",
        "content_type",
        "thoughts",
        "a",
        "b",
        "tags",
        "format",
        "chats",
        "version",
        "timestamp",
        "created",
        "stats",
        "sampling",
        "logit_bias",
        "token_ids",
        "leaf",
    ]
)
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=9)
    | st.sampled_from(["user", "assistant", "a", "b", "thoughts", "code", "tui-chat", 1]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_NAMES, inner, max_size=6),
    max_leaves=30,
)
_CHATS = st.one_of(
    st.fixed_dictionaries({"id": st.just("i"), "mapping": st.dictionaries(_NAMES, _VALUES, max_size=4)}),
    st.fixed_dictionaries({"id": st.just("i"), "chat": st.dictionaries(_NAMES, _VALUES, max_size=6)}),
    _VALUES,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(_CHATS, max_size=3)
    | st.builds(
        lambda chats: {"format": "tui-chat", "version": 1, "chats": chats}, st.lists(_VALUES, max_size=3)
    )
)
def test_no_json_breaks_the_reading(tmp_path, contents):
    try:
        found = read(tmp_path, json.dumps(contents))
    except ChatFileError:
        return
    for entry in found:
        if isinstance(entry, KeptChat):
            chat = entry.conversation
            assert all(node.parent is None or node.parent in chat.nodes for node in chat.nodes.values())
            assert len(chat.path()) <= len(chat.nodes)
            for form in Format:
                assert text_of(entry, form)


def test_a_page_escapes_every_text(tmp_path):
    chat = talk(
        "<b>Birds</b>", "<script>alert(1)</script>", "<img src=x> [a](javascript:b) ![p](http://x/y.png)"
    )
    page = text_of(KeptChat(chat, Marks(tags=("a",))), Format.HTML)
    assert "<script" not in page and "<img" not in page and 'href="javascript' not in page
    assert "&lt;script&gt;alert(1)" in page and "&lt;b&gt;Birds" in page and "#a" in page
    assert "<details>" in page and "src=" not in page.replace("&lt;img src=x", "")


def test_markdown_has_the_shown_branch(tmp_path):
    text = text_of(KeptChat(branched()), Format.MARKDOWN)
    assert text.startswith("# Birds\n") and "## You\n\nwhat is a tern\n" in text
    assert text.endswith("## m\n\nanother answer\n") and "sea bird" not in text
    assert "## System prompt\n\nS\n" in text


def test_files_are_named_by_day_and_title_and_none_is_written_over(tmp_path):
    chat = talk("../a/b: c?" + "é" * 200)
    chat.updated = 1.7e9
    stem = file_stem(KeptChat(chat))
    assert stem.startswith("2023-11-1") and "/" not in stem and len(stem.encode()) < 90
    first = free_path(tmp_path, stem, Format.HTML)
    first.write_text("x")
    assert free_path(tmp_path, stem, Format.HTML).name == f"{stem} (2).html"


def test_files_for_readers_show_what_was_called_with_what_and_what_came_back():
    chat = tool_talk()
    chat.nodes[chat.nodes[chat.leaf].parent].text = "```\n<b>hello</b>\n```"
    text = text_of(KeptChat(chat), Format.MARKDOWN)
    assert '## Tool read (files)\n\n```json\n{\n  "path": "a.txt"\n}\n```\n\n````\n```\n<b>' in text
    page = text_of(KeptChat(chat), Format.HTML)
    assert "Tool read (files)" in page and "&quot;path&quot;: &quot;a.txt&quot;" in page
    assert "<b>" not in page and "&lt;b&gt;hello" in page
