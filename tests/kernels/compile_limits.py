"""What compiled kernels may need: memory, registers' overflow, and instructions for one weight."""

import re
from collections.abc import Mapping
from typing import Any

SHARED = {
    "sm_80": 163 << 10,
    "sm_86": 99 << 10,
    "sm_89": 99 << 10,
    "sm_90": 227 << 10,
    "sm_120": 99 << 10,
    "gfx942": 64 << 10,
    "gfx1100": 64 << 10,
}
"""Bytes of shared memory that one program can have."""

SINES = ("_rope_append", "_plan_decode")
SINE_STACK = 32
"""Bytes that sine and cosine keep for arguments far from zero, which these kernels never give them."""

TOLERANCE = 1.05
TOKENS = (64, 256)
PER_WEIGHT: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "3.6": {
        "Q4_0": (3.83, 4.06),
        "Q4_1": (4.23, 4.42),
        "Q5_0": (5.2, 5.39),
        "Q5_1": (5.39, 5.72),
        "Q8_0": (4.08, 4.27),
        "Q2_K": (5.52, 5.69),
        "Q3_K": (6.27, 6.45),
        "Q4_K": (4.64, 4.83),
        "Q5_K": (5.77, 6.09),
        "Q6_K": (6.02, 6.22),
        "IQ4_NL": (9.44, 9.73),
        "IQ4_XS": (10.06, 10.31),
        "MXFP4": (6.05, 6.28),
    },
    "3.9": {
        "Q4_0": (3.8, 3.98),
        "Q4_1": (3.98, 4.17),
        "Q5_0": (5.38, 5.56),
        "Q5_1": (5.56, 5.88),
        "Q8_0": (4.02, 4.2),
        "Q2_K": (5.52, 5.73),
        "Q3_K": (6.44, 6.62),
        "Q4_K": (4.5, 4.69),
        "Q5_K": (5.94, 6.25),
        "Q6_K": (6.06, 6.09),
        "IQ4_NL": (9.31, 9.67),
        "IQ4_XS": (9.8, 10.14),
        "MXFP4": (6.08, 6.28),
    },
}
"""Triton's version → type → lane instructions for one weight on sm_90, for products of TOKENS tokens."""


def problems(entry: Mapping[str, Any], version: str) -> list[str]:
    """What is wrong with one kernel as `tests.perf.check_sass` describes it."""
    named = f"{entry['kernel']} for {entry['launch']} on {entry['target']}"
    if "error" in entry:
        return [f"{named}: {entry['error']}"]
    found = []
    if entry["stack"] > (SINE_STACK if entry["kernel"] in SINES else 0):
        found.append(f"{named}: {entry['stack']} bytes of a thread's values are in local memory")
    if entry["shared"] > SHARED[entry["target"]]:
        found.append(f"{named}: {entry['shared']} bytes of shared memory")
    limit = TOLERANCE * _measured(entry, version)
    if entry.get("per_weight", 0) > limit:
        found.append(f"{named}: {entry['per_weight']} instructions a weight, {limit:.2f} are allowed")
    return found


def _measured(entry: Mapping[str, Any], version: str) -> float:
    """Instructions for one weight when the table was made; infinite where it has none."""
    name = re.fullmatch(r"(\w+) linear, (\d+) tokens", entry["launch"])
    table = PER_WEIGHT.get(".".join(version.split(".")[:2]), {})
    if name is None or entry["target"] != "sm_90" or name[1] not in table:
        return float("inf")
    return table[name[1]][TOKENS.index(int(name[2]))]
