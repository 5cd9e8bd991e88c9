"""What `tui-chat bench` runs: sizes read from the command line, and random prompts."""

import random
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass

SKIP = "none"
"""What a person writes to leave a part out."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """`count` prompts of `tokens` tokens each, written `8x64`."""

    count: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.count}x{self.tokens}"


@dataclass(frozen=True, slots=True)
class Rows:
    """`count` sequences decoded at once behind `depth` tokens of context each, written `8@512`."""

    count: int
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """Everything that one run measures."""

    rows: tuple[Rows, ...] = (Rows(1), Rows(2), Rows(4), Rows(8))
    prefill: tuple[int, ...] = (512, 2048)
    packed: Prompts | None = Prompts(8, 64)
    new: int = 128
    """Tokens that each row decodes."""
    stall: Prompts | None = None
    stall_depth: int = 0
    """Context tokens of each row that waits."""
    repeat: int = 3

    @property
    def most_rows(self) -> int:
        """The most sequences that decode at once, at least 1."""
        return max((rows.count for rows in self.rows), default=1)


_GPU_ROWS = (Rows(1), *(Rows(count, 512) for count in (2, 4, 8, 16, 32)), Rows(1, 16_384))


def default_workload(device: str, context: int) -> Workload:
    """What is measured when nobody says more: on a GPU more rows, deeper, and longer prompts.

    context: the model's; what it cannot hold is left out.
    """
    if not device.startswith("cuda"):
        return Workload()
    rows = tuple(rows for rows in _GPU_ROWS if rows.depth + 2 <= context)
    return Workload(rows, tuple(tokens for tokens in (512, 2048, 8192) if tokens < context))


def row_counts(text: str) -> tuple[tuple[int, int | None], ...]:
    """`1,8@512` → ((1, None), (8, 512)): rows, and the depth that was written; `none` → ()."""
    if text.strip().lower() == SKIP:
        return ()
    parts = [part.partition("@") for part in text.split(",")]
    return tuple((positive(count), not_negative(depth) if at else None) for count, at, depth in parts)


def sizes(text: str) -> tuple[int, ...]:
    """`1,2,4` → (1, 2, 4); `none` → ()."""
    if text.strip().lower() == SKIP:
        return ()
    return tuple(positive(part) for part in text.split(","))


def prompts(text: str) -> Prompts | None:
    """`4x16000` → 4 prompts, `16000` → one; `none` → None."""
    if text.strip().lower() == SKIP:
        return None
    count, times, tokens = text.lower().rpartition("x")
    return Prompts(positive(count) if times else 1, positive(tokens))


def positive(text: str) -> int:
    """A whole number of at least 1; `ArgumentTypeError` names what was written instead."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def not_negative(text: str) -> int:
    """A whole number of at least 0."""
    if not text.strip().isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


class RandomPrompts:
    """Prompts of ordinary tokens; no two share a beginning, so that no prefix cache can help."""

    def __init__(self, vocab_size: int, is_control: Callable[[int], bool], seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._vocab_size = vocab_size
        self._is_control = is_control
        self._begun: set[tuple[int, ...]] = set()

    def make(self, tokens: int) -> tuple[int, ...]:
        """A fresh prompt of that many token ids."""
        while True:
            ids = tuple(self._token() for _ in range(tokens))
            # Prompts shorter than a cache block cannot be found again, so only longer ones must differ.
            if tokens < 16 or ids[:16] not in self._begun:
                self._begun.add(ids[:16])
                return ids

    def _token(self) -> int:
        while True:
            token_id = self._random.randrange(self._vocab_size)
            if not self._is_control(token_id):
                return token_id
