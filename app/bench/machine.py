"""What the figures of a run were made with: the processor, its driver, and the program's versions."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def describe(device: str) -> dict[str, str | int]:
    """The processor that serves `device` ("cpu", "cuda", "cuda:1")."""
    import torch

    if not device.startswith("cuda"):
        return {"name": _processor(), "threads": torch.get_num_threads()}
    properties = torch.cuda.get_device_properties(device)
    found: dict[str, str | int] = {"name": properties.name, "memory_bytes": properties.total_memory}
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    # The driver is one for all GPUs of a computer.
    driver = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0]
    return found | ({"driver": driver} if driver else {})


def versions() -> dict[str, str]:
    """Python and the packages that decide about speed."""
    found = {"python": platform.python_version()}
    for name in ("tui-chat", "torch", "triton"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The commit that this program runs from, "-dirty" behind it when files differ; None elsewhere.

    The environment's TUI_CHAT_COMMIT comes first, for a copy whose own history says something else.
    """
    if named := os.environ.get("TUI_CHAT_COMMIT"):
        return named
    if not (_ROOT / ".git").exists():
        return None
    return _output("git", "-C", str(_ROOT), "describe", "--always", "--abbrev=40", "--dirty") or None


def today() -> str:
    """The date in UTC, as 2026-01-31."""
    return datetime.now(UTC).date().isoformat()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _output(*command: str) -> str:
    """What a program prints, without surrounding space; "" when it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout.strip()
