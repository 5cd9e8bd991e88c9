"""What `tui-chat ask --json` prints."""

from collections.abc import Sequence
from functools import reduce

from app.chat.conversation import AnswerStats, MessageNode, Role
from app.models.backends.port import ChatModel
from engine import Finished


def ask_record(
    model: ChatModel, steps: Sequence[MessageNode], finished: Finished, *, repeats: bool
) -> dict[str, object]:
    """Return the record of a question's answer; one that called tools has several steps."""
    answers = [node for node in steps if node.role is Role.ASSISTANT]
    costs = [node.stats for node in answers if node.stats is not None]
    cost = reduce(AnswerStats.followed_by, costs) if costs else AnswerStats.of(finished)
    calls = [_call(node) for node in steps if node.role is Role.TOOL]
    return {
        "model": model.name,
        "text": "\n".join(node.text for node in answers if node.text),
        "reasoning": "\n".join(node.reasoning for node in answers if node.reasoning) or None,
        "finish_reason": "repetition" if repeats else str(finished.reason),
        "error": finished.error,
        "prompt_tokens": cost.prompt_tokens,
        "cached_tokens": cost.cached_tokens,
        "saved_ms": cost.saved_ms,
        "completion_tokens": cost.tokens,
        "queue_ms": finished.queue_ms,
        "ttft_ms": cost.ttft_ms,
        "tok_s": cost.tok_s,
    } | ({"calls": calls} if calls else {})


def _call(node: MessageNode) -> dict[str, object]:
    return node.calls[0].record | {"status": str(node.status), "error": node.error, "result": node.text}
