"""`/tokenize` and `/detokenize`, by the fields that llama.cpp and vLLM have for them."""

import asyncio
from typing import Any

from app.serve.http.fields import Fields
from app.serve.protocols.chat_messages import read_messages
from app.serve.protocols.shared import check_tools, read_tools
from app.serve.protocols.thinking import read_thinking
from app.serve.requests.desk import Asked, Chat, Desk, encoded
from app.serve.requests.sampling import Sampling
from app.serve.requests.served import Served


async def tokenize(fields: Fields, desk: Desk) -> dict[str, Any]:
    """The ids of a text, or of a conversation as the model reads it."""
    served = desk.models.of(fields)
    if fields.has("messages"):
        ids = await _chat_ids(fields, served)
    else:
        text = fields.text("content")
        text = fields.text("prompt") if text is None else text
        if text is None:
            raise fields.refuse("content", "is missing")
        ids = await asyncio.to_thread(_text_ids, served, text, fields)
    found: dict[str, Any] = {"tokens": ids, "count": len(ids), "max_model_len": served.model.max_tokens}
    if fields.flag("with_pieces"):
        decode = served.model.tokenizer.decode
        found["tokens"] = [{"id": one, "piece": decode([one], special=True)} for one in ids]
    return found


async def detokenize(fields: Fields, desk: Desk) -> dict[str, Any]:
    """The text of ids."""
    served = desk.models.of(fields)
    ids = fields.many("tokens")
    most = served.model.tokenizer.vocab_size
    if ids is None or not all(type(one) is int and 0 <= one < most for one in ids):
        raise fields.refuse("tokens", f"must be a list of whole numbers from 0 to {most - 1}")
    text = await asyncio.to_thread(served.model.tokenizer.decode, ids, special=True)
    return {"content": text, "prompt": text}


async def count(asked: Asked) -> int:
    """How many tokens a conversation has for the model."""
    (prompt,) = await asyncio.to_thread(encoded, asked)
    return len(prompt.ids)


async def _chat_ids(fields: Fields, served: Served) -> list[int]:
    messages, tools = read_messages(fields), read_tools(fields.objects("tools"))
    check_tools(served, tools, messages)
    chat = Chat(messages, tools, thinking=read_thinking(fields, served))
    (prompt,) = await asyncio.to_thread(encoded, Asked("tokenize", served, Sampling(served.usual), chat))
    return list(prompt.ids)


def _text_ids(served: Served, text: str, fields: Fields) -> list[int]:
    special = fields.flag("parse_special")
    tokenizer = served.model.tokenizer
    ids = tokenizer.encode(text, special=special is not False)
    wanted = fields.flag("add_special" if fields.has("content") else "add_special_tokens")
    bos = tokenizer.bos_id
    # llama.cpp adds it where it is asked to, vLLM where it is not asked not to.
    add = bool(wanted) if fields.has("content") else wanted is not False
    return [bos, *ids] if add and tokenizer.add_bos and bos is not None and ids[:1] != [bos] else ids
