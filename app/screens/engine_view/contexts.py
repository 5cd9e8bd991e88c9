"""What can be done with the context of a chat from the map: forget what is kept of it, save it now."""

import asyncio

from app.models.loader import EngineService
from app.settings.words import size_text
from engine import EngineError


async def evict(engine: EngineService, chat: str, title: str) -> str:
    """Forget what memory keeps of a chat; returns what is said of it."""
    try:
        freed = await asyncio.to_thread(engine.evict_kv, chat)
    except EngineError as error:
        return f"“{title}” keeps its context: {error}."
    if not freed:
        return f"Nothing of “{title}” is kept."
    return f"{size_text(freed)} of “{title}” are free; its next message has it read again."


async def save(engine: EngineService, chat: str, title: str) -> str:
    """Save what is computed of a chat's answers; returns what is said of it."""
    try:
        tokens = await asyncio.to_thread(engine.save_kv, chat)
    except EngineError as error:
        return f"“{title}” is not saved: {error}."
    if tokens:
        return f"{tokens:,} tokens of “{title}” are on their way to disk."
    return f"There is nothing new of “{title}” to save: from 512 tokens on it is saved as its answers end."
