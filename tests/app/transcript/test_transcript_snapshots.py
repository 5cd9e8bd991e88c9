"""Pictures of the transcript: a rich answer in a dark and in a light theme."""

from __future__ import annotations

from typing import Any

import pytest
from textual.pilot import Pilot

from app.transcript.view import MessageView, Transcript
from tests.app.transcript.test_transcript import RICH, TranscriptApp

NAME = "pocket-46m"
QUESTION = 'How does batching work?\n```json\n{"rows": 8}\n```'


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light"])
def test_rich_markdown(snap_compare: Any, theme: str) -> None:
    async def fill(pilot: Pilot[None]) -> None:
        pilot.app.theme = theme
        pilot.app.query_one(Transcript).show(
            [
                MessageView("s", "system", "Be brief."),
                MessageView("q", "user", QUESTION),
                MessageView("a", "assistant", RICH, "Two\nthoughts", title=NAME, footer="96 tokens"),
                MessageView("e", "assistant", "Partial", status="error", title=NAME, footer="NaN in logits"),
                MessageView("w", "assistant", "Now **wri", status="streaming", title=NAME),
            ]
        )  # fmt: skip
        await pilot.pause(0.5)

    assert snap_compare(TranscriptApp(), run_before=fill, terminal_size=(100, 56))
