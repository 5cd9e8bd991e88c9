"""One generation as the scheduler sees it: tokens that are computed chase tokens that are known.

There are no phases in the data: `num_computed` tokens have their KV in blocks, `num_target` tokens
are known, and a tick computes some of the difference. Reading a prompt, a prefix hit, decoding and
the return after a preemption are all that one case.
"""

from dataclasses import dataclass, field
from enum import Enum
from threading import Event
from typing import TYPE_CHECKING, Protocol

from engine.api.request import FinishReason, Priority, Request
from engine.api.stats import SequenceState
from engine.cache.prefix_cache import PrefixNode
from engine.cache.window_pages import WindowTable
from engine.scheduler.occurrences import Occurrences

if TYPE_CHECKING:
    from numpy import ndarray

HEAD_START = {Priority.LOW: -1, Priority.NORMAL: 0, Priority.HIGH: 1}
"""How many head starts a priority is worth in the queue (see `SchedulerConfig.head_start_s`)."""

SHARE = {Priority.LOW: 0.5, Priority.NORMAL: 1.0, Priority.HIGH: 2.0}
"""Weight of a priority in the prefill budget."""


class WaitCause(Enum):
    """Why a sequence computes nothing though it is not its turn that it waits for."""

    REQUEST = "paused on request"
    KV_MEMORY = "paused: the context memory is full"
    KV_MOVES = "waits while context moves to host memory"
    DISK = "its context is read from the disk"
    DEVICE = "paused: the device failed and its models are loaded again"
    MODEL = "waits for its model, which comes back"


class TokenMatcher(Protocol):
    """What an answer is held to: `engine.constraints.matcher`."""

    ready: Event
    late: bool
    error: str | None

    def follow(self, token_ids: list[int], answer_start: int, /) -> None:
        """Begin to compute which tokens may come next."""
        ...

    @property
    def words(self) -> "ndarray":
        """int32, a bit for each token that may."""
        ...


@dataclass(slots=True, eq=False)
class Sequence:
    """Prompt and generated tokens of one request, and where their KV is.

    Only the scheduler changes it. `block_table[i]` is the block of tokens
    `[i * block_size, (i + 1) * block_size)`; the table only grows until it is released as a whole.
    """

    sequence_id: int
    model: int
    """Key of the model in the scheduler."""
    request: Request
    arrival: float
    """Clock of the submit, in seconds; the same clock as `Scheduler.plan`'s `now`."""
    seed: int = 0
    """Random numbers of the sampler depend on (seed, position) only."""
    matcher: TokenMatcher | None = field(default=None, repr=False)
    """What its answer is held to."""
    token_ids: list[int] = field(init=False, repr=False)
    """Prompt and generated tokens."""
    prompt_len: int = field(init=False)
    num_computed: int = 0
    """Tokens whose KV is in blocks."""
    block_table: list[int] = field(default_factory=list, repr=False)
    windows: list[WindowTable] = field(default_factory=list, repr=False)
    """Its pages in layers that see the newest tokens alone, one table of each kind; empty while it waits."""
    reloads: list[PrefixNode] = field(default_factory=list, repr=False)
    """Blocks after `num_computed` whose KV comes back from host memory, in order; nothing of the
    sequence is computed while there are some."""
    cached_tokens: int = 0
    """Of the prompt, how many were found in the prefix cache at the first admission."""
    saved_ms: float = 0.0
    """What reading these would have taken, by what is known then; 0 while nothing is."""
    state: SequenceState = SequenceState.QUEUED
    limit: int = 0
    """Most tokens that the sequence may have in total; the scheduler's, and moves with the KV budget."""
    rank: tuple[float, int] = (0.0, 0)
    """Total order of admission and, reversed, of preemption; set by `Scheduler.submit`."""
    admitted_at: float | None = None
    """Clock of the first tick that ran a token of it."""
    first_token_at: float | None = None
    running_since: float = 0.0
    """Clock at which it last got its blocks."""
    read_at: float = 0.0
    """Clock of the last tick that read a part of its prompt, or of its last admission."""
    preemptions: int = 0
    wait_cause: WaitCause | None = None
    priority: Priority = Priority.NORMAL
    """Starts as the request's."""
    drafted: int = 0
    """Tokens that were drafted ahead of the model so far."""
    accepted: int = 0
    """Of these, how many the model accepted."""
    user_paused: bool = False
    """Paused on request: computes nothing, keeps its KV while nobody needs the memory."""
    finish_reason: FinishReason | None = None
    """Set once, when the sequence ends."""
    error: str | None = None
    _occurrences: Occurrences | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Copy the prompt: the list grows, the request stays as it was."""
        self.token_ids = list(self.request.prompt_ids)
        self.prompt_len = len(self.token_ids)
        self.priority = self.request.priority

    @property
    def answer_start(self) -> int:
        """Where the answer begins: before the prompt's end where the request continues one."""
        return self.prompt_len - self.request.answered

    @property
    def chosen_apart(self) -> bool:
        """Whether its tokens are chosen by more than its row of the device knows."""
        return self.matcher is not None or self.request.top_logprobs is not None

    def occurrences(self) -> Occurrences:
        """Of the tokens known now; the same object each time, which goes on counting."""
        if self._occurrences is None:
            self._occurrences = Occurrences(self.answer_start)
        self._occurrences.follow(self.token_ids)
        return self._occurrences

    def follow(self) -> None:
        """Have what may come next computed, where the answer is held to something."""
        if self.matcher is not None:
            self.matcher.follow(self.token_ids, self.answer_start)

    @property
    def num_target(self) -> int:
        """Tokens known, which `num_computed` chases."""
        return len(self.token_ids)

    @property
    def remaining(self) -> int:
        """Tokens still to be computed; 1 for a decode row."""
        return len(self.token_ids) - self.num_computed

    @property
    def num_generated(self) -> int:
        """Tokens sampled so far."""
        return len(self.token_ids) - self.prompt_len

    @property
    def note(self) -> str:
        """Why it waits, for people; empty where it does not."""
        if self.wait_cause is WaitCause.KV_MEMORY and self.state is SequenceState.QUEUED:
            return f"waits for context memory for {self.num_target} tokens"
        return self.wait_cause.value if self.wait_cause is not None else ""

    @property
    def at_limit(self) -> bool:
        """Whether it may not get another token: the engine ends it with `LENGTH`."""
        return len(self.token_ids) >= self.limit

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return self.finish_reason is not None
