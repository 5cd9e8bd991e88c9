"""Colours that tell chats apart: a theme's primary colour, turned round the circle of hues."""

import re
from collections.abc import Mapping
from colorsys import hls_to_rgb, rgb_to_hls

COUNT = 8
NAMES = tuple(f"chat-{number}" for number in range(1, COUNT + 1))
"""The theme variables that hold them; a theme may name its own."""

_TURN = 0.381966
"""The golden angle: whatever the number of chats, neighbours are far apart."""
_LEAST_SATURATION, _MOST_SATURATION = 0.45, 0.75
_LEAST_CONTRAST = 4.5
_STEP = 0.02
_HEX = re.compile(r"#[0-9a-fA-F]{6}")
_PRIMARY, _BACKGROUND = "#7aa7e8", "#14181f"
"""For themes that leave their colours to the terminal."""


def chat_colors(colors: Mapping[str, str]) -> dict[str, str]:
    """Return a colour for each of `NAMES` that can be told from the theme's background."""
    primary = _hex(colors.get("primary"), _PRIMARY)
    background = _luminance(_channels(_hex(colors.get("background"), _BACKGROUND)))
    hue, _, saturation = rgb_to_hls(*_channels(primary))
    saturation = min(_MOST_SATURATION, max(_LEAST_SATURATION, saturation))
    hues = [(hue + number * _TURN) % 1.0 for number in range(COUNT)]
    return dict(zip(NAMES, (_readable(h, saturation, background) for h in hues), strict=True))


def _readable(hue: float, saturation: float, background: float) -> str:
    """The colour of a hue that has just enough contrast."""
    dark = background < 0.2
    lightness = 0.5
    while 0.0 < lightness < 1.0:
        color = hls_to_rgb(hue, lightness, saturation)
        low, high = sorted((_luminance(color), background))
        if (high + 0.05) / (low + 0.05) >= _LEAST_CONTRAST:
            break
        lightness += _STEP if dark else -_STEP
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in color)


def _hex(value: str | None, other: str) -> str:
    return value if value is not None and _HEX.fullmatch(value) else other


def _channels(color: str) -> tuple[float, float, float]:
    red, green, blue = (int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue


def _luminance(channels: tuple[float, float, float]) -> float:
    """How light a colour looks, 0 to 1, as the web's rules for contrast have it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
