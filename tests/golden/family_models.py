"""Tiny models with random weights in Hugging Face transformers, and what they compute (float32, CPU)."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden.family_recipes.recipe import VOCAB, Recipe

PROMPT = 48
FIRST_PLAIN_TOKEN = 5
"""Lower ids are special in the vocabulary of `tests.support.tiny_vocab`."""


def hide_own_kernels(root: Path) -> None:
    """Take the repository off sys.path before transformers is imported.

    It looks for the PyPI package `kernels` and would import this project's package of that name.
    Modules of `tests` still load: their package is known already.
    """
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != root]


def hub_config(recipe: Recipe) -> dict[str, Any]:
    """config.json of the recipe."""
    return {"architectures": [recipe.model_class], "torch_dtype": "float32", **recipe.config}


def make_model(recipe: Recipe, folder: Path, seed: int) -> Any:
    """A float32 model with drawn weights; config.json is left in `folder`."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    (folder / "config.json").write_text(json.dumps(hub_config(recipe)))
    model_class = getattr(transformers, recipe.model_class)
    config = model_class.config_class.from_pretrained(folder)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    torch.manual_seed(seed)
    model = model_class(config).float().eval()
    _draw_weights(recipe, model, np.random.default_rng(seed))
    return model


def save_checkpoint(recipe: Recipe, model: Any, folder: Path) -> None:
    """Write model.safetensors with the names and shapes of the hub, and config.json as the hub has it."""
    from safetensors.torch import load_file, save_file

    model.save_pretrained(folder)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in tensors:
        if recipe.transposed and name.endswith(recipe.transposed):
            tensors[name] = tensors[name].transpose(-1, -2).contiguous()
    tensors |= _predicting_layer(recipe, tensors)
    save_file(recipe.renamed(tensors) if recipe.renamed else tensors, path)
    (folder / "config.json").write_text(json.dumps(recipe.converted or hub_config(recipe)))


def _predicting_layer(recipe: Recipe, tensors: dict[str, Any]) -> dict[str, Any]:
    """A layer for multi-token prediction after the last, which transformers has not and decoding skips."""
    import torch

    if not recipe.config.get("num_nextn_predict_layers"):
        return {}
    last, hidden = recipe.config["num_hidden_layers"], recipe.config["hidden_size"]
    start, added = f"model.layers.{last - 1}.", f"model.layers.{last}."
    copied = {added + name[len(start) :]: -tensors[name] for name in tensors if name.startswith(start)}
    norms = ("enorm", "hnorm", "shared_head.norm")
    return copied | {
        f"{added}eh_proj.weight": torch.full((hidden, 2 * hidden), 0.5),
        f"{added}embed_tokens.weight": -tensors["model.embed_tokens.weight"],
        f"{added}shared_head.head.weight": -tensors["lm_head.weight"],
        **{f"{added}{name}.weight": torch.full((hidden,), 2.0) for name in norms},
    }


def _draw_weights(recipe: Recipe, model: Any, rng: np.random.Generator) -> None:
    """Random values for every weight; vectors keep what a fresh model has as their mean.

    A matrix holds signs times a few sizes: as good as any other values for finding mistakes, and one bit
    each in a compressed file.
    """
    import torch

    tied = model.get_input_embeddings().weight is getattr(model.get_output_embeddings(), "weight", None)
    for name, tensor in model.state_dict().items():
        if not tensor.is_floating_point() or "inv_freq" in name:
            continue
        if tensor.dim() < 2 or name.endswith("bias") or "_bias" in name:
            mean = next((mean for part, mean in recipe.means.items() if part in name), 0.0)
            noise = recipe.noise * np.round(8 * rng.standard_normal(tensor.shape)) / 8
            values = np.asarray(tensor) + mean + noise
        elif tied and name.startswith("lm_head"):
            continue
        else:
            values = _signs(rng, tuple(tensor.shape)) * _size(name, tuple(tensor.shape))
        values = values * next((gain for part, gain in recipe.gains.items() if part in name), 1.0)
        tensor.copy_(torch.from_numpy(values.astype(np.float32)))


def _signs(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Signs times one size for each row, or for each matrix of a stack."""
    sizes = rng.choice([0.75, 1.0, 1.5], (shape[0], *[1] * (len(shape) - 1)))
    return np.where(rng.random(shape) < 0.5, -sizes, sizes)


def _size(name: str, shape: tuple[int, ...]) -> float:
    """A power of two near what keeps activations at 1: exact in every float type."""
    branch_end = ("o_proj", "down_proj", "dense", "c_proj", "output_linear", "w2")
    size = 4.0 if any(part in name for part in branch_end) else 2.0
    return 2.0 ** round(math.log2(size * shape[-1] ** -0.5))


def draw_prompt(seed: int) -> list[int]:
    """Token ids of the prompt."""
    return np.random.default_rng(1000 + seed).integers(FIRST_PLAIN_TOKEN, VOCAB, PROMPT).tolist()


def logits(model: Any, tokens: list[int]) -> np.ndarray:
    """Float32 [T, vocab] of one whole sequence, without a cache."""
    import torch

    with torch.inference_mode():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()


def greedy(model: Any, prompt: list[int], count: int) -> tuple[list[int], float]:
    """The ids of the best tokens after the prompt, and the least lead of a best one over the second.

    Each step reads the whole sequence again: caches with windows are not part of what is expected.
    """
    tokens, margin = list(prompt), math.inf
    for _ in range(count):
        last = logits(model, tokens)[-1]
        second, best = np.sort(last)[-2:]
        margin = min(margin, float(best - second))
        tokens.append(int(last.argmax()))
    return tokens[len(prompt) :], margin


def round_gelu_as_ggml(model: Any) -> bool:
    """Let the model's GELU be ggml's, a table of float16 values; whether it has one."""
    import torch

    def from_table(x: Any) -> Any:
        half = torch.nn.functional.gelu(x.half().float(), approximate="tanh").half().float()
        return torch.where(x <= -10, torch.zeros_like(x), torch.where(x >= 10, x, half))

    found = [module for module in model.modules() if type(module).__name__ == "GELUTanh"]
    for module in found:
        module.act = from_table
    return bool(found)


def shaken(model: Any, prompt: list[int], seed: int, size: float = 1e-6) -> np.ndarray:
    """The logits when every embedding is off by `size` of itself: far from ties nothing jumps."""
    import torch

    weight = model.get_input_embeddings().weight
    kept = weight.detach().clone()
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        weight.mul_(1 + size * noise)
        result = logits(model, prompt)
        weight.copy_(kept)
    return result


def source_name(recipe: Recipe) -> str:
    """Which program computed what is expected."""
    import transformers

    return f"{recipe.model_class} of transformers {transformers.__version__}, float32, eager, CPU"
