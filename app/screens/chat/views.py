"""From a chat's messages to what its transcript shows, with marks where it is not read as a whole."""

from typing import TYPE_CHECKING

from app.chat.conversation import MessageNode, Role, Status
from app.chat.prompt import answer_footer
from app.chat.session import ChatSession
from app.models.builtin import model_title
from app.screens.call_lines import call_view

if TYPE_CHECKING:
    from app.transcript.view import MessageView

_NOT_READ = "⋯ What stands above is not read any more"


def views_of(session: ChatSession) -> "list[MessageView]":
    """Return the shown messages, and a mark before the one from which on they are read."""
    path = session.conversation.path()
    last = next((node for node in reversed(path) if node.above is not None), None)
    views: list[MessageView] = []
    for node in path:
        if node is last:
            views.append(_mark(node))
        views.append(message_view(session, node))
    return views


def _mark(node: MessageNode) -> "MessageView":
    """The summary is folded below the mark."""
    from app.transcript.view import MessageView

    summary = node.above or ""
    title = f"{_NOT_READ}; this summary is" if summary else _NOT_READ
    return MessageView(
        id=f"{node.id} from here {hash(summary)}",
        role="system",
        text="",
        reasoning=summary,
        title=title,
        folded="summary",
    )


def thinking_cost(node: MessageNode, speed: float) -> tuple[int, float]:
    """Return the tokens of an answer's reasoning, and their seconds at `speed` tokens a second."""
    tokens = node.reasoning_tokens if node.reasoning else 0
    return tokens, tokens / speed if speed > 0 else 0.0


def message_view(session: ChatSession, node: MessageNode) -> "MessageView":
    """Return what the transcript shows of a message."""
    from app.transcript.view import MessageView

    if node.role is Role.TOOL:
        return call_view(session, node)
    answer = node.role is Role.ASSISTANT
    before = session.conversation.nodes.get(node.parent or "")
    title = model_title(node.model) if answer and node.model else ""
    tokens, seconds = thinking_cost(node, node.stats.tok_s if node.stats is not None else 0.0)
    return MessageView(
        id=node.id,
        role=str(node.role),
        text=node.text,
        reasoning=node.reasoning,
        status="limited" if node.status is Status.COMPLETE and node.error else str(node.status),
        footer=answer_footer(
            session.conversation, node, session.key("regenerate"), session.key("choose_model")
        )
        if answer and node.status is not Status.STREAMING
        else "",
        title=title,
        reasoning_tokens=tokens,
        reasoning_seconds=seconds,
        goes_on=answer and before is not None and before.role is Role.TOOL,
    )
