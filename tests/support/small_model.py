"""A model with the built-in one's tokenizer and template whose passes cost next to nothing.

For tests of everything around a pass. Its answers are random words, but depend on every token before
them: sharp attention, and no sequence of greedy ids that soon repeats itself.
"""

from pathlib import Path

from gguf import GGUFReader

from app.models.builtin import builtin_model_path
from tests.support.tiny_gguf import make_tiny
from tests.support.tiny_vocab import Vocabulary

KV_BYTES = 1024
"""Of a token in float32."""


def make_small(path: Path) -> Path:
    """Write the model, always with the same weights; returns the path."""
    reader = GGUFReader(str(builtin_model_path()))
    stored = {name: field.contents() for name, field in reader.fields.items()}
    tokenizer = "tokenizer.ggml."
    vocabulary = Vocabulary(
        model=stored[tokenizer + "model"],
        pre=stored[tokenizer + "pre"],
        tokens=stored[tokenizer + "tokens"],
        types=stored[tokenizer + "token_type"],
        merges=stored[tokenizer + "merges"],
        eos=stored[tokenizer + "eos_token_id"],
        add_bos=stored[tokenizer + "add_bos_token"],
        chat_template=stored["tokenizer.chat_template"],
    )
    return make_tiny(
        path,
        "qwen3",
        vocabulary,
        layers=2,
        width=64,
        ffn=128,
        heads=4,
        kv_heads=2,
        head_dim=32,
        vocab_size=len(vocabulary.tokens),
        context_length=stored["qwen3.context_length"],
    )
