"""The model files that the picker offers, with a word on whether each can be opened here."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.models.fit.device import Memory, memory_of
from app.models.fit.fit_words import fit_text
from app.models.found import FoundModel, ModelSearch, find
from app.models.recommended import Recommended, recommended
from app.models.stores.ollama import weights_of

if TYPE_CHECKING:
    from engine import Fit, ModelSummary


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
    fit: "Fit | None" = None
    """What it takes of this computer's memory; None for what cannot be opened."""
    found: FoundModel | None = None
    """Where it was found; None for a path that was typed."""
    summary: "ModelSummary | None" = None
    """What its file says."""
    kernels: tuple[tuple[str, str], ...] = ()
    """What serves it here, by its parts; none for what cannot be opened."""
    modified: float = 0.0
    """When its file was written last, in seconds since 1970."""

    @property
    def recommended(self) -> Recommended:
        """The sampling and the system prompt that its makers recommend."""
        if self.summary is None:
            return Recommended()
        details = self.found.details if self.found is not None else {}
        return recommended(self.summary.sampling, self.summary.sampling_ignored, details)


def find_models(search: ModelSearch) -> list[ModelFile]:
    """Return the built-in model and every model file that is found, those that cannot be opened last.

    Reads files: call off the UI.
    """
    memory = memory_of(search)
    files = [_described(found.summary, memory, found.title, found) for found in find(search)]
    return sorted(files, key=lambda model: model.problem is not None)


def read_model(path: Path, search: ModelSearch) -> ModelFile:
    """Return one file, whatever is wrong with it."""
    from engine import summarize

    if not path.is_file():
        what = "is a folder; name a .gguf file in it" if path.is_dir() else "does not exist"
        return ModelFile(path, path.name, problem=f"{path} {what}")
    return _described(replace(summarize(weights_of(path)), path=path), memory_of(search), path.stem)


def _described(
    summary: "ModelSummary", memory: Memory | None, title: str, found: FoundModel | None = None
) -> ModelFile:
    from engine import Verdict, serving

    problem = None if summary.supported else summary.problem or "This file is not supported."
    fit = memory.fit(summary) if memory is not None and problem is None else None
    footprint = summary.footprint if problem is None else None
    tight = fit is not None and (fit.verdict in (Verdict.FEWER, Verdict.TOO_LARGE) or fit.split is not None)
    return ModelFile(
        path=summary.path,
        title=title,
        size_bytes=summary.size_bytes,
        quantization=summary.quantization,
        context_length=summary.context_length,
        parameters=summary.parameters,
        problem=problem,
        caution=fit_text(fit) if fit is not None and tight else None,
        fit=fit,
        found=found,
        summary=summary,
        kernels=serving(footprint, memory.rules) if memory is not None and footprint is not None else (),
        modified=_modified(summary.path),
    )


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
