"""A scroll view whose height changes many times a second, and which Textual would lay out each time."""

from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.widget import Widget


class TallView(ScrollView, can_focus=True):
    """Scrolls without animation; what it scrolls over changes without a layout of the screen."""

    def set_virtual_size(self, size: Size) -> None:
        """Take another size to scroll over: only the scroll bar depends on it."""
        self.set_reactive(Widget.virtual_size, size)
        self._scroll_update(size)

    def _scroll_to(self, *args: object, **options: object) -> bool:
        options["animate"] = False
        return super()._scroll_to(*args, **options)  # type: ignore[arg-type]
