"""Ollama: `manifests/HOST/NAMESPACE/MODEL/TAG` are JSON that names blobs by their digests.

A blob is a GGUF file, a template (Go's, not used here), parameters or a system prompt.
"""

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from app.models.stores.store import Store, StoredModel, read_object
from app.models.stores.surroundings import Surroundings

_MANIFESTS = "manifests"
_LAYER = "application/vnd.ollama.image."
_HOST, _NAMESPACE, _TAG = "registry.ollama.ai", "library", "latest"
_DIGEST = re.compile(r"sha256[:-][0-9a-f]{64}")
_LONGEST_TEXT = 1 << 20
_SYSTEM_WIDE = "/usr/share/ollama/.ollama/models"


def folders(around: Surroundings) -> list[Path]:
    """What its variable names, the user's, and that of the service on Linux."""
    found = [*around.folder("OLLAMA_MODELS"), around.home / ".ollama" / "models"]
    if around.shared and around.platform.startswith("linux"):
        found.append(Path(_SYSTEM_WIDE))
    return found


def models(folder: Path) -> Iterator[StoredModel]:
    """The model of every manifest, and its vision projector."""
    root = folder / _MANIFESTS
    for manifest in sorted(path for path in root.rglob("*") if not path.name.startswith(".")):
        if manifest.is_file():
            yield from _model(folder, manifest, _name(manifest.relative_to(root).parts))


def weights_of(path: Path) -> Path:
    """The model file of a manifest; of any other path that path itself."""
    model = _model_of_manifest(path)
    return model.path if model is not None else path


def name_of(path: Path) -> str | None:
    """What Ollama calls the model of a manifest, or of a blob: its first name; None for other files."""
    model = _stored(path)
    return model.name if model is not None else None


def details_of(path: Path) -> dict[str, Any]:
    """What Ollama keeps under that name: `template`, `parameters`, `system`; empty where there is nothing."""
    model = _stored(path)
    return dict(model.details) if model is not None else {}


def _stored(path: Path) -> StoredModel | None:
    return _model_of_manifest(path) or _model_of_blob(path)


def _model_of_manifest(path: Path) -> StoredModel | None:
    root = next((parent for parent in path.parents if parent.name == _MANIFESTS), None)
    if root is None or path.suffix.casefold() == ".gguf" or not path.is_file():
        return None
    return next(iter(_model(root.parent, path, _name(path.relative_to(root).parts))), None)


def _model_of_blob(blob: Path) -> StoredModel | None:
    if blob.parent.name != "blobs" or not _DIGEST.fullmatch(blob.name):
        return None
    try:
        return next((model for model in models(blob.parent.parent) if model.path == blob), None)
    except OSError:
        return None


def _name(parts: tuple[str, ...]) -> str:
    """As Ollama writes it: without the usual host and namespace."""
    *before, tag = parts
    if before[:1] == [_HOST]:
        before = before[1:]
        if before[:1] == [_NAMESPACE]:
            before = before[1:]
    return f"{'/'.join(before)}:{tag}"


def _model(folder: Path, manifest: Path, name: str) -> Iterator[StoredModel]:
    layers = _layers(manifest)
    if layers is None:
        yield StoredModel(manifest, name, "Its manifest is damaged; ollama pull makes it anew.")
        return
    blobs: dict[str, list[Path]] = {}
    for kind, digest in layers:
        blobs.setdefault(kind, []).append(folder / "blobs" / digest.replace(":", "-"))
    details = _details(blobs)
    weights = blobs.get("model", [])
    problem = _problem(blobs, weights, name)
    yield StoredModel(weights[0] if weights else manifest, name, problem, details, entry=manifest)
    for projector in blobs.get("projector", []):
        yield StoredModel(projector, f"{name} projector")


def _layers(manifest: Path) -> list[tuple[str, str]] | None:
    """Kind and digest of each layer; None for what is no manifest."""
    found = []
    layers = read_object(manifest).get("layers")
    for layer in layers if isinstance(layers, list) else [None]:
        kind, digest = (layer.get("mediaType"), layer.get("digest")) if isinstance(layer, dict) else (0, 0)
        if not isinstance(kind, str) or not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            return None
        found.append((kind.removeprefix(_LAYER).partition(";")[0], digest))
    return found


def _problem(blobs: dict[str, list[Path]], weights: list[Path], name: str) -> str | None:
    if "tensor" in blobs:
        return "Ollama keeps it as separate tensors, not as a GGUF file."
    if not weights:
        return "It runs on Ollama's servers: there are no weights on this computer."
    if len(weights) > 1:
        return "Ollama keeps its weights in several files without the names of a split GGUF."
    if "adapter" in blobs:
        return "It has an adapter (LoRA), which is not supported."
    if not weights[0].exists():
        return f"Its weights are missing; ollama pull {name} brings them."
    return None


def _details(blobs: dict[str, list[Path]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind, key in (("template", "template"), ("system", "system"), ("params", "parameters")):
        text = _text(blobs[kind][0]) if kind in blobs else None
        if text is not None:
            found[key] = text
    if "parameters" in found:
        found["parameters"] = _parameters(found["parameters"])
    return found


def _parameters(text: str) -> dict[str, Any]:
    try:
        parameters = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return parameters if isinstance(parameters, dict) else {}


@lru_cache(maxsize=4096)
def _text(blob: Path) -> str | None:
    """What a blob is named after is its content, so it is read once."""
    try:
        with blob.open("rb") as file:
            return file.read(_LONGEST_TEXT).decode("utf-8", "replace")
    except OSError:
        return None


STORE = Store("ollama", "Ollama", folders, models)
