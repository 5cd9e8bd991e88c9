"""How far a device's distributions are from float32: `python -m tests.perf.divergence --device cuda`.

Reads real text with the model twice, on the device as it is used and in plain float32 on the
processor, and prints per KV type: NMSE of the logits, the Kullback-Leibler divergence of every next
token's distribution from that of float32 (nats; mean, 99th percentile, largest) and the share of
positions whose likeliest token is the same.
"""

import argparse
import json
from pathlib import Path

import torch

from app.models.builtin import builtin_model_path
from engine.engine import Engine

TEXT = Path(__file__).parents[2] / "README.md"


def logits(device: str, path: Path, ids: list[int], **options: str) -> torch.Tensor:
    """float64 [T, vocab] of the text."""
    with Engine(device, **options) as engine:
        return engine.load(path).logits(ids).double()


def compare(actual: torch.Tensor, expected: torch.Tensor) -> dict[str, float]:
    """The figures of one device."""
    reference = expected.log_softmax(-1)
    divergence = (reference.exp() * (reference - actual.log_softmax(-1))).sum(-1)
    return {
        "nmse": float(((actual - expected) ** 2).sum() / (expected**2).sum()),
        "kl_mean": float(divergence.mean()),
        "kl_p99": float(divergence.quantile(0.99)),
        "kl_max": float(divergence.max()),
        "same_best": float((actual.argmax(-1) == expected.argmax(-1)).double().mean()),
    }


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=builtin_model_path())
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--kv-dtypes", default="float16,bfloat16,q8_0")
    options = parser.parse_args()
    with Engine("cpu") as engine:
        ids = engine.load(options.model).tokenizer.encode(TEXT.read_text(encoding="utf-8"))
    ids = ids[: options.tokens]
    expected = logits("cpu", options.model, ids, weight_dtype="float32", kv_dtype="float32")
    figures = {
        kind: compare(logits(options.device, options.model, ids, kv_dtype=kind), expected)
        for kind in options.kv_dtypes.split(",")
    }
    print(json.dumps({"model": options.model.name, "tokens": len(ids), **figures}, indent=2))


if __name__ == "__main__":
    main()
