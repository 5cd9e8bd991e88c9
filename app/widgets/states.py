"""How a chat's state looks, the same wherever it is shown: tab bar, live panel and engine view."""

from dataclasses import dataclass

from app.chat.events import TabState


@dataclass(frozen=True, slots=True)
class StateLook:
    """A state's word, its glyph, and the style of both, a name of `app.widgets.lines.STYLES`."""

    word: str
    glyph: str
    style: str


LOOKS = {
    TabState.IDLE: StateLook("idle", "·", "faint"),
    TabState.LOADING: StateLook("loading", "↓", "reading"),
    TabState.QUEUED: StateLook("waiting", "◌", "queued"),
    TabState.READING: StateLook("reading", "◔", "reading"),
    TabState.GENERATING: StateLook("writing", "⠿", "streaming"),
    TabState.ASKING: StateLook("asking", "?", "accent"),
    TabState.CALLING: StateLook("calling", "◆", "streaming"),
    TabState.PAUSED: StateLook("paused", "‖", "queued"),
    TabState.ERROR: StateLook("failed", "!", "error"),
}
