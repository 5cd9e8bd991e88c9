"""Ending thoughts: their end is put behind what has come, and the model goes on from there."""

from collections.abc import Sequence
from dataclasses import replace

from engine import Request


def going_on(request: Request, question: Sequence[int], answer: Sequence[int]) -> Request:
    """What to ask for, so that an answer goes on from its beginning as it is now.

    request: what was asked for last. The beginning comes again, first in the stream; it counts as answered
    in all that looks at an answer.
    """
    ids = (*question, *answer)
    written = len(ids) - len(request.prompt_ids)
    most = None if request.max_tokens is None else max(1, request.max_tokens - written)
    return replace(request, prompt_ids=ids, max_tokens=most, answered=len(answer))
