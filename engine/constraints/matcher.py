"""Which tokens may follow an answer so far: followed and computed beside the engine's thread.

The state is a function of the answer's tokens alone. So nothing has to be kept where a sequence is put
aside, computed again or goes on after a failure: an answer that has not just grown is followed anew.
"""

import threading
from collections import deque
from collections.abc import Sequence
from functools import cache
from queue import SimpleQueue
from typing import TYPE_CHECKING

import numpy as np

from engine.constraints.short_strings import ShortStrings

if TYPE_CHECKING:
    from llguidance import LLMatcher

_THREADS = 4
_WORD = 32


@cache
def _begun() -> "SimpleQueue[Matcher]":
    """What threads compute; the library lets go of the interpreter meanwhile."""
    matchers: SimpleQueue[Matcher] = SimpleQueue()
    for number in range(_THREADS):
        threading.Thread(target=_work, args=(matchers,), name=f"masks {number}", daemon=True).start()
    return matchers


def _work(matchers: "SimpleQueue[Matcher]") -> None:
    while True:
        matchers.get()._compute()


class Matcher:
    """One sequence's; `follow` is the engine's thread's alone, and so is the mask once it is ready."""

    def __init__(self, grammar: "LLMatcher", vocab_size: int, strings: ShortStrings | None = None) -> None:
        """strings: the same grammar where it has strings with a longest length."""
        self.words = np.zeros(-(-vocab_size // _WORD), dtype=np.int32)
        """A bit for each token, the lowest first: whether it may come next; after an error none may."""
        self._place = self.words.ctypes.data
        self.error: str | None = None
        """Why there is no mask."""
        self.ready = threading.Event()
        """Set once the mask behind the answer last followed is there, or `error` is."""
        self.late = False
        """Whether somebody has waited for this mask in vain."""
        self._grammar, self._strings = grammar, strings
        self._answer: list[int] = []
        """What was followed last."""
        self._begun = False
        self._news: deque[tuple[bool, list[int]]] = deque()
        """Whether to begin anew, and tokens, that the grammar has not taken."""
        self._told = threading.Lock()
        self._computing = threading.Lock()

    def follow(self, token_ids: Sequence[int], answer_start: int) -> None:
        """Begin to compute what may follow the answer that begins at `answer_start`."""
        answer, length = self._answer, len(token_ids) - answer_start
        # Not the whole answer is compared after each of many thousand tokens.
        if length and length == len(answer) + 1 and (length == 1 or token_ids[-2] == answer[-1]):
            anew, new = False, [token_ids[-1]]
            answer.append(token_ids[-1])
        else:
            anew, new = True, list(token_ids[answer_start:])
            if new == answer and self._begun:
                return
            self._answer = new.copy()
        self._begun = True
        with self._told:
            self._news.append((anew, new))
            self.ready.clear()
        self.late = False
        _begun().put(self)

    def _compute(self) -> None:
        with self._computing:
            with self._told:
                news = list(self._news)
                self._news.clear()
            try:
                self.error = self._take(news)
            except Exception as error:
                self.error = str(error)
            if self.error is not None:
                self.words.fill(0)
            with self._told:
                if not self._news:
                    self.ready.set()

    def _take(self, news: list[tuple[bool, list[int]]]) -> str | None:
        """Bring grammar and mask up to date; returns why they cannot be."""
        grammar, strings = self._grammar, self._strings
        for anew, tokens in news:
            if anew:
                grammar.reset()
            if grammar.try_consume_tokens(tokens) < len(tokens):
                return grammar.get_error() or "the answer so far is none that it allows"
            if strings is not None:
                strings.took(tokens, anew=anew)
        if strings is not None and strings.fill(grammar, self.words):
            return None
        grammar.unsafe_compute_mask_ptr(self._place, self.words.nbytes)
        return grammar.get_error() or None
