"""Lives through terminals that are too narrow to lay anything out."""

from textual import events
from textual.app import App
from textual.geometry import Size

_LEAST_WIDTH = 8
"""Textual wraps text to what borders and paddings leave, and fails where that is nothing."""


class AnySizeApp(App[int]):
    """Lays a narrower terminal out as if it had the least width: what does not fit is not seen."""

    async def on_event(self, event: events.Event) -> None:
        """Take a size as one that can be laid out."""
        if isinstance(event, events.Resize):
            size = Size(max(_LEAST_WIDTH, event.size.width), max(1, event.size.height))
            event = events.Resize(size, size, pixel_size=event.pixel_size)
            # Two narrow terminals have the same size here, and both have torn what was painted before.
            self.refresh()
        await super().on_event(event)
