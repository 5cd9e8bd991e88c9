"""Conversations to keep, and how they compare."""

from app.chat.conversation import AnswerStats, Conversation, Status
from app.tools.noted import NotedCall
from engine import Priority, SamplingParams, Thinking


def talk(title="one", question="what is a tern", answer="a sea bird"):
    conversation = Conversation(title=title, system_prompt="S", model_path="/m.gguf")
    conversation.sampling = SamplingParams(temperature=0.3, seed=1 << 60, logit_bias={3: -1.0})
    conversation.max_tokens, conversation.priority = 9, Priority.LOW
    conversation.chosen = frozenset({"temperature", "min_p"})
    conversation.thinking = Thinking("high", 2048)
    conversation.add_user(question).above = "we spoke of gulls"
    node = conversation.begin_answer("m")
    conversation.append(node.id, f"<think>hm</think>{answer}", [1, 70000, 3])
    conversation.finish(node.id, stats=AnswerStats(3, 20.5, 4.0))
    return conversation


def same(one, other):
    assert list(one.nodes.values()) == list(other.nodes.values())
    names = (
        "id",
        "title",
        "model_path",
        "system_prompt",
        "sampling",
        "max_tokens",
        "priority",
        "chosen",
        "thinking",
        "tools",
        "leaf",
        "draft",
    )
    for name in names:
        assert getattr(one, name) == getattr(other, name), name


def tool_talk():
    """A chat in which a tool was used."""
    conversation = Conversation(tools=("files",))
    conversation.add_user("what is in a.txt")
    answer = conversation.begin_answer("m")
    conversation.append(answer.id, "I look.", [1, 2])
    conversation.finish(answer.id)
    answer.calls = (NotedCall("c1", "read", {"path": "a.txt"}, "files"),)
    result = conversation.add_call(answer.calls[0])
    conversation.end_call(result.id, Status.COMPLETE, "hello")
    last = conversation.begin_answer("m")
    conversation.append(last.id, "It says hello.", [3])
    conversation.finish(last.id)
    return conversation
