"""What compiled kernels may need: memory, registers' overflow, and instructions for one weight."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

SHARED = {
    "sm_80": 163 << 10,
    "sm_86": 99 << 10,
    "sm_89": 99 << 10,
    "sm_90": 227 << 10,
    "sm_100": 227 << 10,
    "sm_120": 99 << 10,
    "gfx942": 64 << 10,
    "gfx1100": 64 << 10,
}
"""Bytes of shared memory that one program can have."""

SINES = ("_rope_append", "_plan_decode")
SINE_STACK = 32
"""Bytes that sine and cosine keep for arguments far from zero, which these kernels never give them."""
CAPPED = ("experts_rows_kernel", "experts_both_kernel")
CAPPED_STACK = 32
"""Bytes that a limit on registers costs these outside of their loops; without it fewer run at once."""
STACK = dict.fromkeys(SINES, SINE_STACK) | dict.fromkeys(CAPPED, CAPPED_STACK)

LONG_HEADS = "heads of 512"
"""Part of the names of launches that AMD's GPUs are never asked for."""
LONG_HEADS_STACK = 512
"""In prefill attention their sums fill the registers of Hopper: its loop spills a few values."""
LONG_HEADS_BEFORE_LOOP = 96
"""In decode attention queries, key and rotation do, before its loop."""

WIDE = "attention float32"
"""Part of the names of launches over float32 KV."""
WIDE_STACK = 256
"""Their products are three of parts of the operands, which prefill attention holds in registers."""

SPILLED = {
    ("sm_90", "Q6_K linear, 8 tokens"): 16,
    ("sm_100", "Q4_1 linear, 64 tokens"): 8,
    ("sm_100", "Q4_K linear, 64 tokens"): 16,
    ("sm_100", "Q4_K linear, any tokens"): 16,
    ("sm_100", "TQ1_0 linear, 64 tokens"): 16,
    ("sm_100", "q, k beside v of two types, 8 tokens"): 8,
}
"""Bytes of single launches that Triton 3.9 leaves in local memory, two to four registers above a limit."""

TOLERANCE = 1.05
TABLE = Path(__file__).with_name("instructions.json")
"""Triton's version → launch → lane instructions for one weight on sm_90 when they were last recorded."""
COUNTED_ON = "sm_90"


def problems(entry: Mapping[str, Any], version: str) -> list[str]:
    """What is wrong with one kernel as `tests.perf.check_sass` describes it."""
    named = f"{entry['kernel']} for {entry['launch']} on {entry['target']}"
    if "error" in entry:
        return [f"{named}: {entry['error']}"]
    found = []
    # Tiles are chosen for NVIDIA's register files; elsewhere kernels are only known to compile.
    if entry["target"].startswith("sm_") and entry["stack"] > _stack(entry):
        found.append(f"{named}: {entry['stack']} bytes of a thread's values are in local memory")
    served = entry["target"].startswith("sm_") or LONG_HEADS not in entry["launch"]
    if served and entry["shared"] > SHARED[entry["target"]]:
        found.append(f"{named}: {entry['shared']} bytes of shared memory")
    limit = recorded().get(_minor(version), {}).get(entry["launch"])
    if limit and entry["target"] == COUNTED_ON and entry["per_weight"] > TOLERANCE * limit:
        found.append(f"{named}: {entry['per_weight']} instructions a weight, {limit} were recorded")
    return found


def _stack(entry: Mapping[str, Any]) -> int:
    """Bytes of local memory that one thread may have."""
    if entry["kernel"] == "_attention_prefill" and LONG_HEADS in entry["launch"]:
        return LONG_HEADS_STACK
    if entry["kernel"] == "_attention_decode" and LONG_HEADS in entry["launch"]:
        return LONG_HEADS_BEFORE_LOOP
    if entry["kernel"] == "_attention_prefill" and WIDE in entry["launch"]:
        return WIDE_STACK
    return STACK.get(entry["kernel"], SPILLED.get((entry["target"], entry["launch"]), 0))


def recorded() -> dict[str, dict[str, float]]:
    """The table."""
    return json.loads(TABLE.read_text()) if TABLE.exists() else {}


def record(entries: Iterable[Mapping[str, Any]], version: str) -> None:
    """Make the counts in `entries` the table's for a version of Triton."""
    counts = {
        entry["launch"]: entry["per_weight"]
        for entry in entries
        if entry["target"] == COUNTED_ON and "per_weight" in entry
    }
    TABLE.write_text(json.dumps(recorded() | {_minor(version): counts}, indent=1) + "\n")


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
