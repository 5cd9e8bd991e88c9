"""The app's own format: JSON that loses nothing.

    {"format": "tui-chat", "version": 1, "chats": [CHAT, …]}

CHAT has `id`, `title`, `model_path`, `system_prompt`, `sampling` (by the names of the settings file, and
`logit_bias` by token id), `max_tokens`, `priority`, `chosen` (names of sampling values that were set by
hand), `thinking` (such as "auto", "off" or "high 2048"), `tools` (names of servers), `leaf` (id of the
last message that is shown), `draft`, `created`, `updated` (seconds since 1970), `pinned`, `archived`,
`tags`, and `messages`: the whole tree, a message after the one that it answers, which `parent` names. A
message has `id`, `parent`, `role` (user, assistant, system, tool), `text`, `reasoning`, `token_ids`,
`reasoning_tokens` (how many of them come before the answer proper), `status` (complete, stopped, error),
`error`, `model`, `created`, `above` (what is read in place of all that stands above it; null where that
is read), and `stats` of an answer (`tokens`, `tok_s`, `ttft_ms`, `cached_tokens`, `prompt_tokens`,
`saved_ms`). Where tools are used, `calls` are those that an answer asks for, each with `id`, `name`,
`arguments` and `server`; the one that a message of a tool is the result of is its only one. `votes` says
by the ids of answers of other chats what an answer is against them: better, worse or even.

Only `id`, `parent` and `role` of a message have to be there. What a later version 1 adds is passed over;
another version is refused.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

from app.chat.conversation import NEW_TITLE, AnswerStats, Conversation, MessageNode, Role, Status
from app.chat.marks import Marks, tags_from
from app.chat.votes import Vote, read_votes
from app.exchange.kept import ChatFileError, KeptChat
from app.exchange.values import Fields, clean_text
from app.tools.noted import NotedCall
from engine import Priority, RequestError, SamplingParams, Thinking

FORMAT, VERSION = "tui-chat", 1
_LARGEST_ID = 2**32 - 1
_SAMPLING = tuple(field.name for field in fields(SamplingParams) if field.name != "logit_bias")


def record_of(chats: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a file's contents, from what `chat_record` has made."""
    return {"format": FORMAT, "version": VERSION, "chats": list(chats)}


def chat_record(kept: KeptChat) -> dict[str, Any]:
    """Return everything of a chat."""
    chat, marks = kept.conversation, kept.marks
    sampling: dict[str, Any] = {name: getattr(chat.sampling, name) for name in _SAMPLING}
    sampling["logit_bias"] = {str(token): bias for token, bias in chat.sampling.logit_bias.items()}
    return {
        "id": chat.id,
        "title": chat.title,
        "model_path": chat.model_path,
        "system_prompt": chat.system_prompt,
        "sampling": sampling,
        "max_tokens": chat.max_tokens,
        "priority": str(chat.priority),
        "chosen": sorted(chat.chosen),
        "thinking": str(chat.thinking),
        "tools": list(chat.tools),
        "leaf": chat.leaf,
        "draft": chat.draft,
        "created": chat.created,
        "updated": chat.updated,
        "pinned": marks.pinned,
        "archived": marks.archived,
        "tags": list(marks.tags),
        "messages": [_message_record(node) for node in chat.nodes.values()],
    }


def _message_record(node: MessageNode) -> dict[str, Any]:
    status = Status.STOPPED if node.status is Status.STREAMING else node.status
    calls = [call.record for call in node.calls]
    return asdict(node) | {
        "role": str(node.role),
        "status": str(status),
        "calls": calls,
        "votes": dict(node.votes),
    }


def read_record(chat: Fields) -> KeptChat:
    """Return a chat of a file; raises `ChatFileError` when anything in it is wrong."""
    conversation = Conversation(
        conversation_id=chat.name("id"),
        title=chat.text("title") or NEW_TITLE,
        model_path=chat.text_or_none("model_path"),
        system_prompt=chat.text("system_prompt"),
        sampling=_sampling(chat.fields("sampling")),
        max_tokens=chat.whole("max_tokens", 1),
        priority=Priority(chat.one_of("priority", Priority, Priority.NORMAL)),
        chosen=chat.texts("chosen"),
        thinking=_thinking(chat),
        tools=chat.texts("tools"),
    )
    conversation.draft = chat.text("draft")
    conversation.created = chat.time("created")
    conversation.updated = chat.time("updated") or conversation.created
    for message in chat.list_of_fields("messages"):
        node = _message(message, conversation)
        conversation.nodes[node.id] = node
    leaf = chat.text_or_none("leaf")
    if leaf is not None and leaf not in conversation.nodes:
        chat.refuse("leaf", "names no message")
    conversation.leaf = leaf if leaf is not None else next(reversed(conversation.nodes), None)
    marks = Marks(chat.flag("pinned"), chat.flag("archived"), tags_from(chat.texts("tags")))
    return KeptChat(conversation, marks)


def _message(message: Fields, conversation: Conversation) -> MessageNode:
    node_id, parent = message.name("id"), message.text_or_none("parent")
    if node_id in conversation.nodes:
        message.refuse("id", "stands there twice")
    if parent is not None and parent not in conversation.nodes:
        message.refuse("parent", "names no message before it")
    ids = message.whole_numbers("token_ids", _LARGEST_ID)
    before = message.whole("reasoning_tokens", 0) or 0
    if before > len(ids):
        message.refuse("reasoning_tokens", "is more than there are tokens")
    return MessageNode(
        id=node_id,
        parent=parent,
        role=Role(message.one_of("role", Role)),
        text=message.text("text"),
        reasoning=message.text("reasoning"),
        token_ids=ids,
        reasoning_tokens=before,
        status=_status(message),
        error=message.text_or_none("error"),
        model=message.text_or_none("model"),
        created=message.time("created"),
        stats=_stats(message),
        above=message.text_or_none("above"),
        calls=_calls(message),
        votes=_votes(message),
    )


def _votes(message: Fields) -> dict[str, Vote]:
    votes = read_votes(message.fields("votes").values)
    if votes is None:
        message.refuse("votes", f"is not one of {', '.join(Vote)} for each id")
    return votes


def _calls(message: Fields) -> tuple[NotedCall, ...]:
    found = []
    for record in message.list_of_fields("calls"):
        call = NotedCall.read(record.values)
        if call is None:
            record.refuse("name", "and arguments are those of no call")
        found.append(NotedCall.of(call.told, clean_text(call.server)))
    return tuple(found)


def _status(message: Fields) -> Status:
    status = Status(message.one_of("status", Status, Status.COMPLETE))
    return Status.STOPPED if status is Status.STREAMING else status


def _stats(message: Fields) -> AnswerStats | None:
    if message.get("stats") is None:
        return None
    stats = message.fields("stats")
    ttft = stats.number("ttft_ms") if stats.get("ttft_ms") is not None else None
    return AnswerStats(
        tokens=stats.whole("tokens", 0) or 0,
        tok_s=stats.number("tok_s"),
        ttft_ms=ttft,
        cached_tokens=stats.whole("cached_tokens", 0) or 0,
        prompt_tokens=stats.whole("prompt_tokens", 0) or 0,
        saved_ms=stats.number("saved_ms"),
    )


def _thinking(chat: Fields) -> Thinking:
    try:
        return Thinking.parse(chat.text("thinking") or str(Thinking()))
    except ValueError as error:
        chat.refuse("thinking", f"must be {error}")


def _sampling(sampling: Fields) -> SamplingParams:
    given = {name: sampling.get(name) for name in _SAMPLING if sampling.get(name) is not None}
    bias = sampling.fields("logit_bias")
    try:
        return SamplingParams(**given, logit_bias={int(key): bias.number(key) for key in bias.keys})
    except (RequestError, TypeError, ValueError, OverflowError) as error:
        raise ChatFileError(f"{sampling.where}: {error}") from error
