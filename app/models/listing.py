"""The model files that the picker offers, with a word on whether each can be opened here."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.models.builtin import builtin_model_path
from app.settings.words import size_text


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file. `problem` says why it cannot be opened; `caution`, what to know before."""

    path: Path
    title: str
    size_bytes: int = 0
    quantization: str = "?"
    context_length: int | None = None
    parameters: int = 0
    problem: str | None = None
    caution: str | None = None


def find_models(folders: Sequence[Path]) -> list[ModelFile]:
    """Return the built-in model and every model file of the folders, those that cannot be opened last.

    Reads files: call off the UI.
    """
    from engine import list_models

    free = _free_memory()
    found = [_from_summary(summary, free) for summary in list_models(folders, [builtin_model_path()])]
    return sorted(found, key=lambda model: model.problem is not None)


def read_model(path: Path, free: int | None = None) -> ModelFile:
    """Return one file, whatever is wrong with it."""
    from engine import summarize

    if not path.is_file():
        what = "is a folder; name a .gguf file in it" if path.is_dir() else "does not exist"
        return ModelFile(path, path.name, problem=f"{path} {what}")
    return _from_summary(summarize(path), _free_memory() if free is None else free)


def _from_summary(summary: object, free: int) -> ModelFile:
    from engine import ModelSummary

    assert isinstance(summary, ModelSummary)
    problem = None if summary.supported else summary.problem or "This file is not supported."
    needed = 2 * summary.parameters
    caution = None
    if problem is None and needed > free:
        caution = f"needs about {size_text(needed)} of memory; {size_text(free)} are free"
    return ModelFile(
        path=summary.path,
        title=summary.path.stem,
        size_bytes=summary.size_bytes,
        quantization=summary.quantization,
        context_length=summary.context_length,
        parameters=summary.parameters,
        problem=problem,
        caution=caution,
    )


def _free_memory() -> int:
    import psutil

    return int(psutil.virtual_memory().available)
