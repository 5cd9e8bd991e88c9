"""How fast models that are not here yet will write: by what others wrote here, or by how fast memory is read.

A token reads the weights once, so bytes a token and bytes a second give tokens a second.
"""

import json
import logging
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.models.fit.device import Memory
from app.models.fit.speeds import SpeedStore
from app.models.found import ModelSearch
from app.models.index import SummaryIndex
from app.settings.paths import write_atomically

if TYPE_CHECKING:
    from engine import DeviceRules

log = logging.getLogger(__name__)

_REACHED_ON_A_GPU, _REACHED_ON_A_CPU = 0.4, 0.5
"""Part of a memory's bandwidth that writing for one chat reaches where nothing was measured yet."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Bytes a second that weights are read with here."""

    measured: tuple[tuple[int, float], ...] = ()
    """Of models that answered here: bytes of weights that a token reads, and bytes a second."""
    bandwidth: float | None = None
    """What is expected where there are none."""

    def tok_s(self, read_bytes: int) -> float | None:
        """Tokens a second of a model that reads so many bytes a token; None: not known.

        The measured model nearest in size tells: what a step costs besides reading tells on small ones.
        """
        if read_bytes <= 0:
            return None
        if self.measured:
            nearest = min(self.measured, key=lambda one: abs(math.log(one[0] / read_bytes)))
            return nearest[1] / read_bytes
        return self.bandwidth / read_bytes if self.bandwidth else None


def pace_of(search: ModelSearch, memory: Memory, speeds: SpeedStore) -> Pace:
    """What is known of this computer. Reads files, and may read memory for some 50 ms: call off the UI."""
    from engine import read_bytes

    rules = memory.rules
    known = {
        path: speed.tok_s
        for path, speed in speeds.all().items()
        if speed.device in (rules.device, *memory.others) and path.is_file()
    }
    index = SummaryIndex(search.cache and search.cache / "models.json")
    measured = []
    for summary, tok_s in zip(index.summaries(list(known)), known.values(), strict=True):
        if summary.footprint is not None and (nbytes := read_bytes(summary.footprint, rules)):
            measured.append((nbytes, nbytes * tok_s))
    if measured:
        return Pace(tuple(measured))
    bandwidth = _bandwidth(rules, search.engine.threads, search.cache)
    reached = _REACHED_ON_A_GPU if rules.on_gpu else _REACHED_ON_A_CPU
    return Pace(bandwidth=None if bandwidth is None else bandwidth * reached)


def _bandwidth(rules: "DeviceRules", threads: int, cache: Path | None) -> float | None:
    """What the device's memory gives, measured once and remembered."""
    from engine import read_bandwidth

    threads = threads or os.cpu_count() or 1
    key = [rules.device, rules.title, rules.gpu, threads]
    file = None if cache is None else cache / "bandwidth.json"
    known = _read(file, key) if file is not None else None
    if known is not None:
        return known
    found = read_bandwidth(rules, threads)
    if file is not None and found is not None:
        try:
            write_atomically(file, json.dumps({"key": key, "bytes_a_second": found}))
        except OSError as error:
            log.warning("the memory's bandwidth is not kept: %s", error)
    return found


def _read(file: Path, key: list[object]) -> float | None:
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        found = float(kept["bytes_a_second"]) if kept["key"] == key else 0.0
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if 0.0 < found < math.inf else None
