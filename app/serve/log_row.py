"""One row for each request, for whoever watches the server."""

import sys
import time
from dataclasses import dataclass

from app.settings.words import duration_text
from app.terminal.controls import for_stream

_LONGEST = 200


@dataclass(frozen=True, slots=True)
class RequestRow:
    """What one request was and cost."""

    kind: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    ttft_ms: float | None
    """From its arrival to its first token; None without one."""
    completion_tokens: int
    tok_s: float
    ending: str

    def text(self) -> str:
        """The row."""
        first = "no token" if self.ttft_ms is None else f"first after {duration_text(self.ttft_ms)}"
        speed = f" at {self.tok_s:.1f} tok/s" if self.tok_s else ""
        return (
            f"{self.kind:<11} {self.model}  prompt {self.prompt_tokens:,} ({self.cached_tokens:,} cached)  "
            f"{first}  out {self.completion_tokens:,}{speed}  {self.ending}"
        )


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A request that was not answered."""

    path: str
    status: int
    message: str

    def text(self) -> str:
        """The row."""
        return f"{self.path}  {self.status}  {' '.join(self.message[:_LONGEST].split())}"


Row = RequestRow | RefusedRow


def write_row(row: Row) -> None:
    """Write it to stderr; one that is closed is no error."""
    if sys.stderr is None:
        return
    try:
        line = f"{time.strftime('%H:%M:%S')} {row.text()}"
        print(for_stream(line, sys.stderr), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return
