"""llama.cpp's own converter, run on a checkpoint without a tokenizer, and llama.cpp's logits of a file."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden.family_recipes.recipe import VOCAB, Recipe
from tests.support.tiny_vocab import bpe_vocabulary


def use_llama_cpp(source: Path) -> None:
    """Let `conversion` and the `gguf` that belongs to it be imported from llama.cpp's source tree."""
    if not (source / "conversion").is_dir():
        raise SystemExit(f"{source}: not a source tree of llama.cpp that has a `conversion` package")
    sys.path[:0] = [str(source / "gguf-py"), str(source)]


def convert(recipe: Recipe, checkpoint: Path, target: Path) -> None:
    """Write `target` (GGUF, float32) from a folder with config.json and model.safetensors."""
    import gguf
    import torch
    from conversion import get_model_class

    from tests.support.tiny_gguf import write_vocabulary

    vocabulary = bpe_vocabulary(VOCAB)
    listing = {
        "model": {"vocab": {token: n for n, token in enumerate(vocabulary.tokens)}},
        "added_tokens": [],
    }
    (checkpoint / "tokenizer.json").write_text(json.dumps(listing))
    config: dict[str, Any] = json.loads((checkpoint / "config.json").read_text())
    model_class = get_model_class(config["architectures"][0])
    with torch.inference_mode():
        # The config is handed over as the hub spells it: read by transformers it would change.
        # The name is no family's: llama.cpp looks for tokens that go with some of them.
        whole = model_class(
            checkpoint,
            gguf.LlamaFileType.ALL_F32,
            target,
            hparams=config,
            model_name="tiny",
            **recipe.converter,
        )
        converter = getattr(whole, "impl", whole)
        converter.set_vocab = lambda: write_vocabulary(converter.gguf_writer, vocabulary)
        whole.write()


def architecture(path: Path) -> str:
    """`general.architecture` of a file."""
    import gguf

    return str(gguf.GGUFReader(str(path)).fields["general.architecture"].contents())


def repack_experts(source: Path, target: Path, element_type: str) -> None:
    """Write `source` again with its experts in another type, whose values must be the same."""
    import gguf
    from gguf.quants import dequantize, quantize

    from tests.support.family_goldens import copy_fields, finish

    reader = gguf.GGUFReader(str(source))
    writer = gguf.GGUFWriter(str(target), architecture(source))
    copy_fields(reader, writer)
    kind = gguf.GGMLQuantizationType[element_type]
    for tensor in reader.tensors:
        if not tensor.name.endswith("_exps.weight"):
            writer.add_tensor(tensor.name, tensor.data)
            continue
        packed = quantize(tensor.data, kind)
        if not np.array_equal(dequantize(packed, kind), tensor.data):
            raise ValueError(f"{tensor.name}: its values are none of {element_type}")
        writer.add_tensor(tensor.name, packed, raw_dtype=kind)
    finish(writer)


def llama_cpp_logits(path: Path, tokens: list[int]) -> np.ndarray:
    """Float32 [T, vocab] of llama.cpp: one thread, float32 keys and values, no flash attention."""
    import llama_cpp

    # Below 0 YaRN's range is the file's; the defaults of the Python package would override it.
    model = llama_cpp.Llama(
        str(path), n_ctx=256, n_batch=256, n_ubatch=256, n_threads=1, n_threads_batch=1, n_gpu_layers=0,
        type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32, flash_attn=False, logits_all=True,
        swa_full=True, yarn_beta_fast=-1.0, yarn_beta_slow=-1.0, verbose=False,
    )  # fmt: skip
    model.eval(tokens)
    result = np.array(model.scores[: len(tokens)], np.float32)
    model.close()
    return result
