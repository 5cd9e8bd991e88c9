"""Making room in a chat's context: its oldest turns are not read any more, or a summary in their place."""

import asyncio
from dataclasses import dataclass, replace
from enum import StrEnum

from app.chat.context.limits import first_read, text_tokens, token_counts
from app.chat.context.summary import longest_end, summarise, summary_room
from app.chat.conversation import Conversation
from app.chat.prompt import read_part
from app.chat.shared import Services
from app.chat.turn import Turn
from app.models.backends.port import ChatModel
from engine import RequestError


class Room(StrEnum):
    """What may be done for a chat that outgrows its context."""

    TRIM = "trim"
    SUMMARISE = "summarise"


@dataclass(frozen=True, slots=True)
class RoomMade:
    """What is read less now."""

    turn: Turn | None
    """What waited for it, to be asked now."""
    tokens: int
    """About how many tokens."""
    only_part: bool
    """Whether a summary leaves out the oldest messages, which were too long for it."""


async def make_room(
    how: Room, conversation: Conversation, turn: Turn | None, model: ChatModel, services: Services
) -> RoomMade:
    """Mark the message from which on a chat is read; raises `EngineError` where that cannot be.

    turn: what waits for room. About half of the context is free afterwards.
    """
    path = conversation.path() if turn is None else conversation.path(turn.parent) if turn.parent else []
    _, read = read_part(path)
    loop = asyncio.get_running_loop()
    counts = await loop.run_in_executor(services.encoders, token_counts, read, model)
    # Where nobody knows how much is read, half of what there is makes room.
    room = (model.max_tokens or sum(counts)) // 2 - summary_room(model)
    asks = turn is not None and turn.text is not None
    if turn is not None and turn.text is not None:
        room -= await loop.run_in_executor(services.encoders, text_tokens, turn.text, model)
    first = first_read(read, counts, room, keeps_last=not asks)
    if first == 0 or not read:
        raise RequestError("There is no older turn to leave out: the last message alone is this long.")
    above, only_part = "", False
    if how is Room.SUMMARISE:
        end = longest_end(read[:first], counts[:first], model)
        if not end:
            raise RequestError("The turns are too long to be summarised; leave them out instead.")
        only_part = len(end) < first
        above = await summarise(conversation, end, model, services)
    if first < len(read):
        read[first].above = above
    elif turn is not None:
        turn = replace(turn, above=above)
    return RoomMade(turn, sum(counts[:first]), only_part)
