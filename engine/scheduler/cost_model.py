"""How long a tick will take, learned while ticks run.

Per model: ms ≈ a + b · rows + c · [whether it reads] + d · prefill tokens + e · context of the rows +
f · token pairs of the prefill's attention. The coefficients are fitted by recursive least squares with
forgetting, on relative errors (so that short ticks count as much as long ones), and are never negative.
What the last ticks say nothing about (prefill, while everybody decodes) stays as it was learned, or as
many times slower as what they say something about has become since.
"""

from dataclasses import dataclass, field
from operator import itemgetter, mul
from typing import NamedTuple

FORGETTING = 0.88
"""Weight that a tick keeps after the next one: about the last eight ticks count."""

STIFFNESS = 0.02
"""Weight of what was learned before, against one tick; decides where ticks say nothing."""

IDLE_WEIGHT = 0.3
"""Weight of a tick that reads nothing, against those before it."""

SURPRISE = 2.5
"""Measured against predicted; beyond this a single tick is taken for noise of the machine."""

CLIPPED = 1.3
"""What a single surprising tick may count as, relative to the prediction."""

DRIFT = 1.25
"""Two ticks in a row off by this in the same direction are believed: the machine has changed."""

TRUST = 0.3
"""Weight that everything learned before such a change keeps."""

MISLED = 20.0
"""A second tick so many times shorter than the first one says: that one did something else besides."""

SWEEPS = 12
CONVERGED = 1e-6
"""Squared relative error that another sweep would remove."""

UNITS = (1.0, 4.0, 1.0, 64.0, 1000.0, 1e5)
"""Features are counted in these: of similar size, so that stiffness treats them alike."""

_ROWS, _READS, _TOKENS, _CONTEXT, _PAIRS = 1, 2, 3, 4, 5
"""Where these features are."""

_TOGETHER = (_ROWS, _CONTEXT), (_READS, _TOKENS, _PAIRS)
"""What ticks have or lack together: decoding and reading."""

LEAST_MS = 1e-3
"""No pass is shorter: a prediction below says that nothing is known of such passes."""

PRIOR_MS = (5.0, 0.5, 1.0, 4.0, 0.1, 0.1)
"""Coefficients before anything was measured, per unit; the first tick scales them all.

A model that joins others begins with those of the slowest: they say what this computer is good at.
"""


class Load(NamedTuple):
    """What one model computes in a tick."""

    rows: int = 0
    """Decode rows."""
    context: int = 0
    """Tokens that the decode rows attend to, summed."""
    prefill_tokens: int = 0
    prefill_pairs: float = 0.0
    """(query, key) pairs of the prefill chunks' attention, summed."""

    @property
    def features(self) -> tuple[float, ...]:
        """The model's inputs, in `UNITS`."""
        reads = float(self.prefill_tokens > 0)
        values = (1.0, self.rows, reads, self.prefill_tokens, self.context, self.prefill_pairs)
        return tuple(value / unit for value, unit in zip(values, UNITS, strict=True))


def chunk_pairs(start: int, length: int) -> float:
    """(query, key) pairs of `length` tokens that follow `start` others."""
    return length * (start + 0.5 * (length + 1))


@dataclass(slots=True)
class _Fit:
    """Decayed normal equations of one model and their solution."""

    theta: list[float] = field(default_factory=lambda: list(PRIOR_MS))
    gram: list[list[float]] = field(default_factory=lambda: [[0.0] * len(UNITS) for _ in UNITS])
    moment: list[float] = field(default_factory=lambda: [0.0] * len(UNITS))
    seen: list[int] = field(default_factory=lambda: [0] * len(UNITS))
    last_ratio: float = 1.0
    """Measured against predicted time of the last tick."""
    idle: tuple[tuple[float, ...], float] | None = None
    """Features and smoothed milliseconds of the last ticks that read nothing."""
    after_reading: bool = False
    """Whether the last tick read."""
    anchors: list[list[float]] = field(default_factory=lambda: [[] for _ in _TOGETHER])
    """Per entry of `_TOGETHER`: theta after the last tick that had of it."""

    def predict(self, x: tuple[float, ...]) -> float:
        return sum(map(mul, self.theta, x))

    def observe(self, x: tuple[float, ...], ms: float, steady: bool) -> None:
        if not self.seen[0]:
            self._scale(ms / self.predict(x))
        elif self.seen[0] == 1 and ms * MISLED < self.predict(x):
            # Compiling, or weights that came from a disk: what it said of reading would stay for long.
            factor = ms / self.predict(x)
            self._scale(factor, factor)
        ms = self._credible(x, ms)
        self._observe_idle(x, ms, steady)
        for i, value in enumerate(x):
            self.seen[i] += value > 0
        weight = 1.0 / (ms * ms)
        for i, row in enumerate(self.gram):
            part = weight * x[i]
            self.gram[i] = [FORGETTING * old + part * value for old, value in zip(row, x, strict=True)]
            self.moment[i] = FORGETTING * self.moment[i] + part * ms
        self._solve(STIFFNESS * weight)
        for features, anchor in zip(_TOGETHER, self.anchors, strict=True):
            if any(x[i] for i in features):
                anchor[:] = self.theta

    def _observe_idle(self, x: tuple[float, ...], ms: float, steady: bool) -> None:
        """Learn of ticks that read nothing; one that reads says only that they do not last longer."""
        alone = _alone(x)
        expected = self.idle_ms(alone)
        if x[_READS]:
            if self.idle is not None and x[_ROWS] and ms < expected:
                self.idle = alone, ms
        elif steady:
            # After ticks that read, what was expected is old.
            weight = 1.0 if self.idle is None or (self.after_reading and ms < expected) else IDLE_WEIGHT
            self.idle = x, expected + weight * (ms - expected)
        self.after_reading = x[_READS] > 0.0

    def idle_ms(self, x: tuple[float, ...]) -> float:
        """What was measured of ticks that read nothing, carried over to the rows `x`.

        Ticks that read do not change it: the fit cannot tell their rows' part from that of the prompt.
        """
        expected = self.predict(x)
        if self.idle is None:
            return expected
        seen, ms = self.idle
        before = self.predict(seen)
        return ms * expected / before if before > 0.0 else expected

    def _credible(self, x: tuple[float, ...], ms: float) -> float:
        """Clip a lone surprise; two ticks off in the same direction mean that the machine changed."""
        expected = self.predict(x)
        if expected < LEAST_MS:
            return ms
        ratio = ms / expected
        last, self.last_ratio = self.last_ratio, ratio
        if any(value > 0 and seen < 2 for value, seen in zip(x, self.seen, strict=True)):
            return ms
        if min(ratio, last) > DRIFT or max(ratio, last) < 1.0 / DRIFT:
            factor = min(ratio, last) if ratio > 1.0 else max(ratio, last)
            alone = self.predict(_alone(x))
            if factor < 1.0 and alone < factor * expected:
                # Longer than rows alone still: reading is cheaper than was known, the machine as it was.
                self._scale_reading((factor * expected - alone) / (expected - alone))
            else:
                self._scale(factor, 1.0 if x[_READS] else factor)
            self._follow(x)
            self.last_ratio = 1.0
            return ms
        if ratio > SURPRISE:
            return expected * CLIPPED
        return max(ms, expected / CLIPPED) if ratio < 1.0 / SURPRISE else ms

    def _scale(self, factor: float, idle: float = 1.0) -> None:
        """The machine became `factor` times slower: so did all coefficients; trust the past less.

        idle: what ticks that read nothing are scaled by. One that reads says nothing of them: reading may
        be dearer than was known, or something else was done besides and the next one is as before.
        """
        self.theta = [t * factor for t in self.theta]
        if self.idle is not None:
            self.idle = self.idle[0], self.idle[1] * idle
        self.gram = [[TRUST * value / factor**2 for value in row] for row in self.gram]
        self.moment = [TRUST * value / factor for value in self.moment]

    def _scale_reading(self, factor: float) -> None:
        """To read became `factor` times as dear; trust the past less."""
        for i in (_READS, _TOKENS, _PAIRS):
            self.theta[i] *= factor
        self.gram = [[TRUST * value for value in row] for row in self.gram]
        self.moment = [TRUST * value for value in self.moment]

    def _follow(self, x: tuple[float, ...]) -> None:
        """What ticks like `x` lack changes as they did since it was last seen.

        Not by every factor there was: what makes them faster again is mostly learned without one, and the
        factors of a noisy machine would multiply without end.
        """
        for features, anchor in zip(_TOGETHER, self.anchors, strict=True):
            if not anchor or any(x[i] for i in features):
                continue
            before = sum(map(mul, anchor, x))
            if before >= LEAST_MS:
                for i in features:
                    self.theta[i] = anchor[i] * self.predict(x) / before

    def _solve(self, stiffness: float) -> None:
        """Coordinate descent with coefficients ≥ 0, held to the last solution by `stiffness`."""
        theta, last = self.theta, list(self.theta)
        for _ in range(SWEEPS):
            change = 0.0
            for i, row in enumerate(self.gram):
                own = row[i] + stiffness
                slope = self.moment[i] - sum(map(mul, row, theta)) + stiffness * (last[i] - theta[i])
                step = max(slope / own, -theta[i])
                theta[i] += step
                change = max(change, step * step * own)
            if change < CONVERGED:
                return


def _alone(x: tuple[float, ...]) -> tuple[float, ...]:
    """The same decode rows, with nothing read beside them."""
    return x[0], x[_ROWS], 0.0, 0.0, x[_CONTEXT], 0.0


class CostModel:
    """Predicts the milliseconds of a tick per model key. Not thread-safe."""

    def __init__(self) -> None:
        self._fits: dict[int, _Fit] = {}

    def observe(self, model: int, load: Load, ms: float, steady: bool = True) -> None:
        """Learn from one measured pass of `model`; times that are not positive are ignored.

        steady: whether ticks as this one are what rows have that nothing is read beside.
        """
        if ms > 0.0:
            self._fit(model).observe(load.features, ms, steady)

    def predict(self, model: int, load: Load) -> float:
        """Milliseconds of a pass of `model`; 0 for an empty one."""
        if not load.rows and not load.prefill_tokens:
            return 0.0
        return self._fit(model).predict(load.features)

    def idle_ms(self, loads: dict[int, Load]) -> float:
        """Milliseconds of a tick that only decodes `loads`, by model key."""
        return sum(self._fit(model).idle_ms(load.features) for model, load in loads.items())

    def fixed_ms(self, model: int) -> float:
        """What a pass of `model` costs before its first token."""
        return self._fit(model).theta[0]

    def chunk_ms(self, model: int) -> float:
        """What reading costs in a pass of `model` before the first token that is read."""
        return self._fit(model).theta[_READS]

    def row_ms(self, model: int, context: float) -> float:
        """Milliseconds that one more decode row attending to `context` tokens adds; > 0."""
        theta = self._fit(model).theta
        return max(theta[_ROWS] / UNITS[_ROWS] + theta[_CONTEXT] / UNITS[_CONTEXT] * context, 1e-6)

    def token_ms(self, model: int, start: int, length: float) -> float:
        """Milliseconds per token of a chunk of about `length` tokens at position `start`; > 0."""
        theta = self._fit(model).theta
        pairs = start + 0.5 * length
        return max(theta[_TOKENS] / UNITS[_TOKENS] + theta[_PAIRS] / UNITS[_PAIRS] * pairs, 1e-6)

    def reading_ms(self, model: int, tokens: int) -> float:
        """Milliseconds that the first `tokens` tokens of a prompt take; 0 before any prompt was measured."""
        return tokens * self.token_ms(model, 0, tokens) if self.has_read(model) else 0.0

    def has_read(self, model: int) -> bool:
        """Whether a pass of `model` that read a prompt was measured."""
        return self._fit(model).seen[_READS] > 0

    def forget(self, model: int) -> None:
        """Drop what was learned of a model that was unloaded."""
        self._fits.pop(model, None)

    def _fit(self, model: int) -> _Fit:
        fit = self._fits.get(model)
        if fit is None:
            fit = self._fits[model] = _Fit(self._prior())
        return fit

    def _prior(self) -> list[float]:
        known = [fit.theta for fit in self._fits.values() if fit.seen[_READS]]
        return list(max(known, key=itemgetter(_TOKENS), default=PRIOR_MS))
