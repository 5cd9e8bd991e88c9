"""Two small, complete tokenizers for generated GGUF files: byte-level BPE and SentencePiece-type.

Both are learnt from a paragraph below by plain byte-pair merging, so that encoding text really
merges, and both hold control tokens for ChatML turns. Nothing here is random.
"""

import itertools
import re
from collections import Counter
from dataclasses import dataclass

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Token types as GGUF numbers them."""

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] | trim "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_TEXT = """the quick brown fox jumps over the lazy dog and then the other dogs there were running through
those thin woods while somebody thought about another thing entirely; hello world, hello again! what is the
capital of france? it is paris. what is two and two? it is four. tell me a story about the sea and the
little ship that sailed there in the winter, please. once upon a time there was an old miller who had three
sons, a mill, a donkey and a cat; the sons ground the corn and the donkey carried it. user assistant system
The answer to this question is: I do not know. You can ask me another, or we could talk of other things."""


@dataclass(frozen=True)
class Vocabulary:
    """Everything that a GGUF file says about its tokenizer."""

    model: str
    tokens: list[str]
    types: list[int]
    pre: str | None = None
    merges: list[str] | None = None
    scores: list[float] | None = None
    bos: int | None = None
    eos: int | None = None
    unknown: int | None = None
    add_bos: bool = False
    chat_template: str | None = CHATML


def bpe_vocabulary(size: int = 384, pre: str = "qwen2") -> Vocabulary:
    """A `gpt2`-type vocabulary: four special tokens, 256 bytes, merges, `[UNUSED…]` up to `size`."""
    alphabet = byte_alphabet()
    special = [("<|endoftext|>", CONTROL), ("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL)]
    special += [("<think>", USER_DEFINED), ("</think>", USER_DEFINED)]
    words = [[alphabet[byte] for byte in word.encode()] for word in re.findall(r" ?\w+|[^\w\s]+", _TEXT)]
    merges = learn_merges(words, size - 256 - len(special))
    tokens = [text for text, _ in special] + list(alphabet) + [left + right for left, right in merges]
    types = [kind for _, kind in special] + [NORMAL] * (len(tokens) - len(special))
    tokens, types = _fill(tokens, types, size)
    pairs = [f"{left} {right}" for left, right in merges]
    return Vocabulary("gpt2", tokens, types, pre=pre, merges=pairs, bos=0, eos=2)


def spm_vocabulary(size: int = 448) -> Vocabulary:
    """A `llama`-type vocabulary with scores: `<unk> <s> </s>`, ChatML controls, 256 bytes, pieces."""
    head = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    head += [("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL)]
    head += [(f"<0x{byte:02X}>", BYTE) for byte in range(256)]
    words = [list("▁" + word) for word in _TEXT.split()]
    letters = sorted({letter for word in words for letter in word})
    pieces: list[str] = []
    for left, right in learn_merges(words, size - len(head) - len(letters)):
        if left + right not in pieces:
            pieces.append(left + right)
    pieces += letters
    tokens = [text for text, _ in head] + pieces
    types = [kind for _, kind in head] + [NORMAL] * len(pieces)
    scores = [0.0] * len(head) + [-float(rank) for rank in range(len(pieces))]
    tokens, types = _fill(tokens, types, size)
    scores += [-1e6] * (size - len(scores))
    return Vocabulary("llama", tokens, types, scores=scores, bos=1, eos=2, unknown=0, add_bos=True)


def byte_alphabet() -> list[str]:
    """The character that stands for each byte in byte-level BPE (GPT-2's printable mapping)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), 256)}
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def learn_merges(words: list[list[str]], count: int) -> list[tuple[str, str]]:
    """Up to `count` byte-pair merges, most frequent first, ties broken by the pair's text."""
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs = Counter(pair for word in words for pair in itertools.pairwise(word))
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        words = [_apply(word, best) for word in words]
    return merges


def _apply(word: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    for part in word:
        if merged and (merged[-1], part) == pair:
            merged[-1] += part
        else:
            merged.append(part)
    return merged


def _fill(tokens: list[str], types: list[int], size: int) -> tuple[list[str], list[int]]:
    if len(tokens) > size:
        raise ValueError(f"a vocabulary of {size} tokens cannot hold the {len(tokens)} that it needs")
    missing = size - len(tokens)
    return tokens + [f"[UNUSED{n}]" for n in range(missing)], types + [UNUSED] * missing
