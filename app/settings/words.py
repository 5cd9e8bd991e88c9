"""Sizes and times as people write them."""


def wait_text(seconds: float | None) -> str:
    """Write an estimate for people: `about 4 s`; nothing where it is not known or under half a second."""
    if seconds is None or seconds < 0.5:
        return ""
    return f"about {seconds:.0f} s" if seconds < 100 else f"about {seconds / 60:.0f} min"


def age_text(seconds: float) -> str:
    """Write how long ago something was: `now`, `5 min`, `3 h`, `2 days`, `6 weeks`, `2 years`."""
    for unit, length in (("year", 365 * 86_400), ("week", 7 * 86_400), ("day", 86_400)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}" + ("s" if count > 1 else "")
    if seconds < 60:
        return "now"
    return f"{seconds // 3600:.0f} h" if seconds >= 3600 else f"{seconds // 60:.0f} min"


def size_text(count: float) -> str:
    """Write a number of bytes for people: `32 MB`, `1.2 GB`."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            value = count / factor
            return f"{value:.1f} {unit}" if value < 10 and unit in ("GB", "TB") else f"{value:.0f} {unit}"
    return f"{count:.0f} B"


def device_text(device: str) -> str:
    """Name one of several devices: `GPU 1` for `cuda:1`."""
    kind, _, number = device.partition(":")
    return f"GPU {number}" if kind == "cuda" else device


def duration_text(milliseconds: float) -> str:
    """Write a short time: `85 ms`, `1.2 s`."""
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
"""Numbers in words, from 0 on."""


def count_text(count: int) -> str:
    """Write a number as a word up to ten: `six`, `1,234`."""
    return _NUMBERS[count] if 0 <= count < len(_NUMBERS) else f"{count:,}"


def tokens_text(count: int) -> str:
    """Write a number of tokens: `8k` for 8,192, `5.4k`, `600`."""
    if count < 1000:
        return str(count)
    thousands = f"{count / 1024:.1f}".removesuffix(".0")
    return f"{thousands}k"
