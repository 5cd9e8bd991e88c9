"""The built-in model with its first layers alone: it quotes itself as models do, and computes a third."""

from pathlib import Path

from gguf import GGUFReader, GGUFWriter

from app.models.builtin import builtin_model_path


def make_shallow(path: Path, layers: int = 2) -> Path:
    """Write the model; returns the path."""
    reader = GGUFReader(str(builtin_model_path()))
    arch = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(str(path), arch)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = layers if name == f"{arch}.block_count" else field.contents()
        writer.add_key_value(name, value, field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        if not (tensor.name.startswith("blk.") and int(tensor.name.split(".")[1]) >= layers):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
