"""The lines above the composer that are only there when there is something to say."""

from collections.abc import Sequence

from app.widgets.lines import LineWidget, Row


class NoticeBar(LineWidget):
    """Shows loading progress, waiting messages, edit mode and warnings; no lines, no height."""

    def show(self, rows: Sequence[Row]) -> None:
        """Draw these rows; none hides the bar."""
        self.set_class(bool(rows), "-shown")
        self.set_rows(rows)
