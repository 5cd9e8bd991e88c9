"""Reading tests/golden/families: tiny converted models, and what transformers computes on them."""

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

FOLDER = Path(__file__).parents[1] / "golden" / "families"


REFUSED = {"gemma4-e": "attention.shared_kv_layers"}
"""Fixtures of an architecture that runs whose own variant of it does not, and the key that says so."""


@dataclass(frozen=True)
class FamilyGolden:
    """Expected float32 outputs of one tiny model."""

    name: str
    architecture: str
    """`general.architecture` of its file."""
    tokens: list[int]
    """The prompt."""
    expected: dict[int, np.ndarray]
    """Position in the prompt → logits float32 [vocab]."""
    greedy: list[int]
    """The best tokens after the whole prompt."""

    @classmethod
    def load(cls, name: str) -> "FamilyGolden":
        """Read `name`.npz."""
        with np.load(FOLDER / f"{name}.npz") as data:
            return cls(
                name=name,
                architecture=str(data["architecture"]),
                tokens=data["tokens"].tolist(),
                expected=dict(zip(data["rows"].tolist(), data["logits"], strict=True)),
                greedy=data["greedy"].tolist(),
            )

    def write_model(self, folder: Path) -> Path:
        """Unpack the model file into `folder`."""
        path = folder / f"{self.name}.gguf"
        path.write_bytes(gzip.decompress((FOLDER / f"{self.name}.gguf.gz").read_bytes()))
        return path


def all_families() -> list[FamilyGolden]:
    """Every fixture, in order of names."""
    return [FamilyGolden.load(path.stem) for path in sorted(FOLDER.glob("*.npz"))]


def changed_copy(reader: GGUFReader, target: Path, *, without: str = "", halved: str = "") -> Path:
    """Write a file again without one tensor or key, or with the rows of one tensor `halved`."""
    writer = GGUFWriter(str(target), reader.fields["general.architecture"].contents())
    copy_fields(reader, writer, without)
    for tensor in reader.tensors:
        if tensor.name != without:
            width = tensor.data.shape[-1]
            kept = tensor.data[..., : width // 2 if tensor.name == halved else width]
            writer.add_tensor(tensor.name, np.ascontiguousarray(kept), raw_dtype=tensor.tensor_type)
    finish(writer)
    return target


def copy_fields(reader: GGUFReader, writer: GGUFWriter, without: str = "") -> None:
    """Add every key of a file but one, and but those that a writer adds itself."""
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", without):
            continue
        sub_type = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type)


def finish(writer: GGUFWriter) -> None:
    """Write the whole file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
