"""Made-up stores of other programs, with files that really are models."""

import hashlib
import json
from pathlib import Path

from tests.support.tiny_gguf import make_tiny


class Stores:
    """A home in which programs keep models."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._seeds = 0

    def model(self, path: Path | str) -> Path:
        """A small model; no two are alike."""
        path = self.home / path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._seeds += 1
        return make_tiny(path, "llama", layers=1, seed=self._seeds)

    def write(self, path: Path | str, content: object) -> Path:
        """Text, bytes, or JSON."""
        path = self.home / path
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def hugging_face(self, repository: str, file: str, *revisions: str, root: str = ".cache/huggingface/hub"):
        """A blob and a link to it in each revision; the last one is main."""
        base = self.home / root / f"models--{repository.replace('/', '--')}"
        blob = self.model(base / "blobs" / f"blob{self._seeds}")
        for revision in revisions or ("abc",):
            link = base / "snapshots" / revision / file
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(blob)
        self.write(base / "refs/main", (revisions or ("abc",))[-1])
        return base / "snapshots" / (revisions or ("abc",))[-1] / file

    def blob(self, content: bytes, root: str = ".ollama/models") -> tuple[str, Path]:
        """Its digest and its file."""
        digest = hashlib.sha256(content).hexdigest()
        return f"sha256:{digest}", self.write(f"{root}/blobs/sha256-{digest}", content)

    def ollama(self, manifest: str, root: str = ".ollama/models", **layers: bytes | None) -> Path:
        """A manifest such as "registry.ollama.ai/library/qwen3/8b"; a layer without content is missing."""
        described, model = [], Path()
        for kind, content in layers.items():
            digest, path = self.blob(content or kind.encode(), root)
            if content is None:
                path.unlink()
            if kind == "model":
                model = path
            described.append({"mediaType": f"application/vnd.ollama.image.{kind}", "digest": digest})
        record = {"schemaVersion": 2, "config": {"digest": "sha256:0"}, "layers": described}
        path = self.write(f"{root}/manifests/{manifest}", record)
        return model if "model" in layers else path
