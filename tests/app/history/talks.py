"""Conversations to keep, and how they compare."""

from app.chat.conversation import AnswerStats, Conversation
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
        "leaf",
        "draft",
    )
    for name in names:
        assert getattr(one, name) == getattr(other, name), name
