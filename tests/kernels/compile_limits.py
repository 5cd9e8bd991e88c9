"""What compiled kernels may need: memory, registers' overflow, and instructions for one weight."""

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

PER_WEIGHT: Mapping[str, Mapping[str, float]] = {}
"""Triton's version → launch → most lane instructions for one weight on sm_90."""


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
    limits = PER_WEIGHT.get(".".join(version.split(".")[:2]), {})
    limit = limits.get(entry["launch"], float("inf")) if entry["target"] == "sm_90" else float("inf")
    if entry.get("per_weight", 0) > limit:
        found.append(f"{named}: {entry['per_weight']} instructions a weight, {limit} are allowed")
    return found
