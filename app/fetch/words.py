"""How a fetch goes on, in words."""

from app.fetch.fetch import Progress, State
from app.settings.words import size_text


def describe(progress: Progress) -> str:
    """One moment in words: `45 MB of 93 MB, 38 MB/s, 2 s left`."""
    if progress.state is State.CHECKING:
        return "is being checked"
    parts = [size_text(progress.done)]
    if progress.total is not None:
        share = 100 * progress.done // progress.total if progress.total else 100
        parts = [f"{share} %, {size_text(progress.done)} of {size_text(progress.total)}"]
    if progress.waiting:
        return ", ".join([*parts, f"waiting: {progress.waiting}"])
    if progress.speed > 0:
        parts.append(f"{size_text(progress.speed)}/s")
    if progress.seconds_left is not None:
        parts.append(f"{_left(progress.seconds_left)} left")
    return ", ".join(parts)


def _left(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
