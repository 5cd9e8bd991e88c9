"""The events of a streamed response, and the items that it is made of."""

from collections.abc import Sequence
from typing import Any

from app.serve.http.streams import event
from app.serve.protocols.shared import new_id
from app.tools.calls import arguments_text
from engine import ToolCall

Item = dict[str, Any]


def reasoning_item(item_id: str, text: str) -> Item:
    """What the model thought."""
    content = [{"type": "reasoning_text", "text": text}]
    return {"id": item_id, "type": "reasoning", "summary": [], "content": content, "status": "completed"}


def message_item(item_id: str, text: str, logprobs: Sequence[Item] = ()) -> Item:
    """What it answered."""
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}]
    return {
        "id": item_id,
        "type": "message",
        "role": "assistant",
        "content": content,
        "status": "completed",
    }


def tool_item(item_id: str, call: ToolCall) -> Item:
    """A tool that it called."""
    return {
        "id": item_id,
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": arguments_text(call),
        "status": "completed",
    }


class ResponseEvents:
    """Numbers events, and opens and closes the items that they belong to."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        """Those that are whole."""
        self._number = -1
        self._open: Item | None = None
        self._kind = ""
        """Of the open item's text."""

    def named(self, event_name: str, /, **fields: Any) -> bytes:
        """One event."""
        self._number += 1
        return event({"type": event_name, "sequence_number": self._number, **fields}, event_name)

    def thought(self, text: str) -> list[bytes]:
        """A piece of a thought."""
        return self._piece(reasoning_item(new_id("rs_"), ""), "reasoning_text", text)

    def text(self, text: str, logprobs: Sequence[Item] = ()) -> list[bytes]:
        """A piece of the answer."""
        return self._piece(message_item(new_id("msg_"), ""), "output_text", text, logprobs)

    def call(self, call: ToolCall) -> list[bytes]:
        """A whole call."""
        item = tool_item(new_id("fc_"), call)
        begun = {**item, "arguments": "", "status": "in_progress"}
        place = {"item_id": item["id"], "output_index": len(self.items)}
        events = self.close()
        place["output_index"] = len(self.items)
        events.append(self.named("response.output_item.added", output_index=len(self.items), item=begun))
        arguments, name = item["arguments"], "response.function_call_arguments"
        events.append(self.named(f"{name}.delta", **place, delta=arguments))
        events.append(self.named(f"{name}.done", **place, arguments=arguments, name=call.name))
        events.append(self._item_done(item))
        return events

    def close(self, *, empty_message: bool = False) -> list[bytes]:
        """Close the open item; empty_message: a response without any gets a message without text."""
        events: list[bytes] = []
        if empty_message and not self.items and self._open is None:
            events = self.text("")
        item, self._open = self._open, None
        if item is None:
            return events
        part = item["content"][0]
        place = {"item_id": item["id"], "output_index": len(self.items), "content_index": 0}
        more: Item = {"logprobs": part["logprobs"]} if self._kind == "output_text" else {}
        done = self.named(f"response.{self._kind}.done", **place, text=part["text"], **more)
        events += (done, self.named("response.content_part.done", **place, part=part), self._item_done(item))
        return events

    def _piece(self, new: Item, kind: str, text: str, logprobs: Sequence[Item] = ()) -> list[bytes]:
        events: list[bytes] = []
        if self._open is None or self._kind != kind:
            events = [*self.close(), *self._opened(new, kind)]
        assert self._open is not None
        part = self._open["content"][0]
        part["text"] += text
        more: Item = {}
        if kind == "output_text":
            part["logprobs"] += logprobs
            more = {"logprobs": list(logprobs)}
        place = {"item_id": self._open["id"], "output_index": len(self.items), "content_index": 0}
        return [*events, self.named(f"response.{kind}.delta", **place, delta=text, **more)]

    def _opened(self, item: Item, kind: str) -> list[bytes]:
        self._open, self._kind = item, kind
        place = {"item_id": item["id"], "output_index": len(self.items), "content_index": 0}
        begun = {**item, "content": [], "status": "in_progress"}
        added = self.named("response.output_item.added", output_index=len(self.items), item=begun)
        return [added, self.named("response.content_part.added", **place, part=item["content"][0])]

    def _item_done(self, item: Item) -> bytes:
        done = self.named("response.output_item.done", output_index=len(self.items), item=item)
        self.items.append(item)
        return done
