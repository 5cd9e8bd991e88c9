"""How much memory there is for a model, without loading torch."""

import shutil
import subprocess
from collections.abc import Mapping

_QUERY = ("--query-gpu=memory.free", "--format=csv,noheader,nounits")
_PATIENCE = 10.0


def free_memory(environment: Mapping[str, str], device: str, limit: int | None = None) -> tuple[int, str]:
    """Return the free bytes for models and where they are: `memory of the GPU`, or `memory`.

    device: as in the settings. limit: the most that may be taken of a GPU. A GPU counts where its driver's
    tool is there and answers.
    """
    hidden = device == "cpu" or environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    gpu = None if hidden else _gpu_memory()
    if gpu is not None:
        return (gpu if limit is None else min(gpu, limit)), "memory of the GPU"
    import psutil

    return int(psutil.virtual_memory().available), "memory"


def _gpu_memory() -> int | None:
    """Free bytes of the GPU that has most; None where there is none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        done = subprocess.run([tool, *_QUERY], capture_output=True, text=True, timeout=_PATIENCE, check=False)
        return max(int(line) for line in done.stdout.split("\n") if line.strip()) << 20
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
