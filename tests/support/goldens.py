"""Reading the golden logits of tests/golden and making the model files that they belong to."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.tiny_gguf import make_from_recipe, weights_hash

FOLDER = Path(__file__).parents[1] / "golden"
BUILTIN_NAME = "builtin_46m"


@dataclass(frozen=True)
class Golden:
    """llama.cpp's float32 logits for one recipe and one token sequence."""

    name: str
    recipe: dict[str, Any]
    weights_sha256: str
    tokens: list[int]
    logits: np.ndarray
    """Float32 [T, vocab]."""

    @classmethod
    def load(cls, name: str) -> "Golden":
        """Read tests/golden/`name`.npz."""
        with np.load(FOLDER / f"{name}.npz") as data:
            recipe = json.loads(str(data["recipe"]))
            return cls(name, recipe, str(data["weights_sha256"]), data["tokens"].tolist(), data["logits"])


def golden_names() -> list[str]:
    """Every golden but the built-in model's."""
    return sorted(path.stem for path in FOLDER.glob("*.npz") if path.stem != BUILTIN_NAME)


def model_file(golden: Golden, folder: Path) -> Path:
    """Make the golden's GGUF file in `folder` and prove that its weights are the recorded ones."""
    path = make_from_recipe(folder / f"{golden.name}.gguf", golden.recipe)
    assert weights_hash(path) == golden.weights_sha256, (
        f"{golden.name}: this machine's NumPy or gguf made other weights than the golden file was made "
        "with; the engine is not at fault: run `python -m tests.golden.make_goldens` again"
    )
    return path


def nmse(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Squared error over the energy of `theirs`, in float64."""
    expected = np.asarray(theirs, np.float64)
    return float(((np.asarray(ours, np.float64) - expected) ** 2).sum() / (expected**2).sum())


def best_differs(ours: np.ndarray, theirs: np.ndarray, margin: float = 1e-3) -> list[int]:
    """Positions where the best token differs although `theirs` has it ahead by more than `margin`."""
    top = np.sort(theirs, axis=-1)
    clear = top[:, -1] - top[:, -2] > margin
    return np.nonzero(clear & (ours.argmax(-1) != theirs.argmax(-1)))[0].tolist()
