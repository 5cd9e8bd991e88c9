"""A GGUF file of trained weights, with all that the built-in model's file says of itself.

python -m tests.perf.pocket.make_file --weights DIR --out pocket-f32.gguf

llama.cpp's `llama-quantize --pure pocket-f32.gguf pocket.gguf Q5_K_S` makes the file that is shipped.
"""

import argparse
from pathlib import Path

import gguf
import torch

from app.models.builtin import builtin_model_path

_OWN = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")
"""Fields that the writer makes itself."""


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True, help="the folder that `finetune` wrote to")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    reader, tensors = gguf.GGUFReader(builtin_model_path()), {}
    for path in sorted(args.weights.glob("weights*.pt")):
        tensors.update(torch.load(path, weights_only=True)["tensors"])
    writer = gguf.GGUFWriter(args.out, "qwen3")
    for name, field in reader.fields.items():
        if not name.startswith(_OWN):
            kind, *rest = field.types
            writer.add_key_value(name, field.contents(), kind, rest[-1] if rest else None)
    for tensor in reader.tensors:
        held = tensors[tensor.name]
        if not isinstance(held, torch.Tensor):
            quants, scales, shape = held
            held = (quants.float() * scales.float()).view(shape)
        writer.add_tensor(tensor.name, held.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
