"""What is shown of a call of a tool: one line with its state, and all of it folded below."""

from typing import TYPE_CHECKING

from app.chat.conversation import MessageNode, Status
from app.chat.events import TabState
from app.chat.session import ChatSession
from app.tools.noted import NotedCall
from app.widgets.states import LOOKS

if TYPE_CHECKING:
    from app.transcript.view import MessageView

_ARGUMENTS = 200
"""Most characters of a call's arguments in its line."""


def call_view(session: ChatSession, node: MessageNode) -> "MessageView":
    """A call in one line, and folded below it all of its arguments and what came of it."""
    from app.transcript.view import MessageView

    call = node.calls[0] if node.calls else NotedCall("", "tool", "")
    glyph, said, look = call_state(session, node)
    parts = [f"{glyph} {call.name}", " ".join(call.text.split())[:_ARGUMENTS], call.server, said]
    folded = f"{call.text}\n\n{node.text}" if node.text else call.text
    return MessageView(
        id=node.id,
        role=str(node.role),
        text="",
        reasoning=folded,
        head=(" · ".join(part for part in parts if part), look),
        goes_on=True,
    )


def call_state(session: ChatSession, node: MessageNode) -> tuple[str, str, str]:
    """Return the glyph of a call's state, what is said of it, and the look of both."""
    if node.status is Status.COMPLETE:
        return LOOKS[TabState.IDLE].glyph, f"{len(node.text):,} characters", "reasoning"
    if node.status is Status.ERROR:
        why = node.error or " ".join(node.text.split())
        return LOOKS[TabState.ERROR].glyph, f"failed: {why}", "footererror"
    if node.status is Status.STOPPED:
        return "■", node.error or "stopped", "footerstopped"
    state = session.tools.call_state(node.id)
    return LOOKS[state].glyph, LOOKS[state].word, "cursor"
