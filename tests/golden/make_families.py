"""Write the fixtures of tests/golden/families: tiny models of every family, and what they must compute.

Run by hand, never by the test suite; needs the `fidelity` extra and llama.cpp's source tree, whose own
converter makes the files (it is inside the source distribution of llama-cpp-python):

    pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36 && tar xzf llama_cpp_python-*.tar.gz
    python -m tests.golden.make_families --llama-cpp llama_cpp_python-0.3.36/vendor/llama.cpp [NAME ...]

A recipe (tests/golden/family_recipes) is a tiny config.json. Its model gets random weights in Hugging Face
transformers, which computes what is expected: float32, eager attention, CPU, no cache. Seeds are tried
until the greedy answer is clear of ties and a shake of the embeddings changes nothing but rounding (so
that no token stands between two experts). Where llama-cpp-python is installed its logits must agree.

A fixture is NAME.gguf.gz and NAME.npz: `architecture`, `tokens` int32 [48], `rows` int32 [R] and `logits`
float32 [R, vocab] of those positions, `greedy` int32 [64 or fewer] (the answer to it), `margin` (the
least lead of a greedy token), `llama_cpp_nmse` (nan: not compared), `source`.
"""

import argparse
import gzip
import importlib.util
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden import family_conversion, family_models
from tests.golden.family_recipes import RECIPES
from tests.golden.family_recipes.recipe import Recipe

FOLDER = Path(__file__).parent / "families"
ROOT = Path(__file__).parents[2]
ROWS = [*range(0, family_models.PROMPT, 3), family_models.PROMPT - 1]
LEAST_MARGIN = 5e-3
LEAST_DIFFERENT = 5
"""Of the greedy tokens: an answer that repeats itself notices little."""
SEEDS = 60
LARGEST_SHAKE = 1e-8
"""NMSE; the shake is 1e-6 of each value."""
LARGEST_DIFFERENCE = 1e-9
LARGEST_WITH_GELU = 1e-6
"""NMSE to llama.cpp. Its GELU is a table of float16 values: made equal, but where a value falls between
two entries it can fall on either side."""


class FixtureError(Exception):
    """Why a fixture was not written."""


def main() -> None:
    """Make the named fixtures, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="which fixtures (default: all)")
    parser.add_argument("--llama-cpp", type=Path, required=True, help="llama.cpp's source tree")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - RECIPES.keys()
    if unknown:
        parser.error(f"no such fixture: {', '.join(sorted(unknown))}; there are {', '.join(RECIPES)}")
    family_models.hide_own_kernels(ROOT)
    family_conversion.use_llama_cpp(arguments.llama_cpp.resolve())
    FOLDER.mkdir(exist_ok=True)
    failed = 0
    for name in arguments.names or RECIPES:
        try:
            print(make(RECIPES[name]), flush=True)
        except FixtureError as error:
            print(f"{name}: {error}", flush=True)
            failed += 1
    if failed:
        raise SystemExit(f"{failed} of {len(arguments.names or RECIPES)} were not made")


def make(recipe: Recipe) -> str:
    """Write one fixture; a line that says what came out."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model, seed, found = search(recipe, folder)
        family_models.save_checkpoint(recipe, model, folder)
        plain = folder / "model.gguf"
        family_conversion.convert(recipe, folder, plain)
        found["architecture"] = np.array(family_conversion.architecture(plain))
        found["llama_cpp_nmse"] = np.float64(compare(model, plain, found["tokens"].tolist()))
        if recipe.experts:
            family_conversion.repack_experts(plain, folder / "repacked.gguf", recipe.experts)
            plain = folder / "repacked.gguf"
        packed = FOLDER / f"{recipe.name}.gguf.gz"
        with packed.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as target:
            target.write(plain.read_bytes())
    data = FOLDER / f"{recipe.name}.npz"
    np.savez_compressed(data, **found)
    size = packed.stat().st_size + data.stat().st_size
    return (
        f"{recipe.name}: seed {seed}, margin {found['margin']:.4f}, {len(set(found['greedy'].tolist()))} "
        f"different, llama.cpp {found['llama_cpp_nmse']:.1e}, {size / 1024:.0f} KiB"
    )


def search(recipe: Recipe, folder: Path) -> tuple[Any, int, dict[str, Any]]:
    """The first seed from the recipe's on whose model is clear of ties: model, seed, what is expected."""
    refused = Counter()
    for seed in range(recipe.seed, recipe.seed + SEEDS):
        model = family_models.make_model(recipe, folder, seed)
        prompt = family_models.draw_prompt(seed)
        logits = family_models.logits(model, prompt)
        greedy, margin = family_models.greedy(model, prompt, recipe.answer)
        whole = prompt + greedy
        if len(set(greedy)) < max(LEAST_DIFFERENT, recipe.answer // 4):
            refused["repeats"] += 1
        elif margin < LEAST_MARGIN:
            refused["ties"] += 1
        elif not steady(model, whole, family_models.logits(model, whole)):
            refused["unsteady"] += 1
        else:
            return model, seed, expected(recipe, prompt, logits, greedy, margin)
    raise FixtureError(f"no seed of {SEEDS} gives an answer without ties: {dict(refused)}")


def expected(
    recipe: Recipe, prompt: list[int], logits: np.ndarray, greedy: list[int], margin: float
) -> dict[str, Any]:
    """The arrays of a fixture, but llama.cpp's difference."""
    return {
        "tokens": np.array(prompt, np.int32),
        "rows": np.array(ROWS, np.int32),
        "logits": logits[ROWS],
        "greedy": np.array(greedy, np.int32),
        "margin": np.float64(margin),
        "source": np.array(family_models.source_name(recipe)),
    }


def steady(model: Any, tokens: list[int], logits: np.ndarray) -> bool:
    """Whether a small shake of the embeddings moves the logits by no more than a small amount."""
    from tests.support.goldens import nmse

    return all(nmse(family_models.shaken(model, tokens, n), logits) < LARGEST_SHAKE for n in range(3))


def compare(model: Any, path: Path, tokens: list[int]) -> float:
    """How far llama.cpp's logits are from the expected ones; nan where they are not compared."""
    from tests.support.goldens import nmse

    if importlib.util.find_spec("llama_cpp") is None:
        return float("nan")
    theirs = family_conversion.llama_cpp_logits(path, tokens)
    gelu = family_models.round_gelu_as_ggml(model)
    difference = nmse(theirs, family_models.logits(model, tokens))
    if difference > (LARGEST_WITH_GELU if gelu else LARGEST_DIFFERENCE):
        raise FixtureError(f"llama.cpp computes something else (NMSE {difference:.1e})")
    return difference


if __name__ == "__main__":
    main()
