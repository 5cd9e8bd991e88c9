"""Random texts and small vocabularies in which every cut of a pre-tokenizer shows in the ids."""

import random
from pathlib import Path

from gguf import GGUFWriter

from engine.tokenizer.bpe import byte_alphabet

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
WHOLE = (" world",)
"""A word of many random texts, for vocabularies in which only rules that ignore merges give it."""
_CHATML = ("<|im_start|>", "<|im_end|>")
_SPACES = (
    *(" ", "\n", "\t", "\r\n", "\v", "\x1c", "\x85", "\u00a0", "\u1680"),
    *("\u2003", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u180e", "\u200b", "\ufeff"),
)
_EMOJI = ("👩‍👩‍👧‍👦", "🇩🇪", "👍🏽", "❤️", "🏴‍☠️", "😀😀", "🫠")
_WORDS = ("The", "quick", "BROWN", "fOx", " hello", " world", "ing", "McDonald", "ΑΒΓδ", "straße", "İst")
_CONTRACTIONS = ("don't", "I'LL", "we're", "it'S", "'tis", "they'VE", "x'd", "'ſ", "'ll'm", "a's b'")
_CODE = (
    "def f(x):\n    return x+1\n",
    '<div class="a">',
    '{"a": [1,2]}',
    "C:\\x",
    "$$!!??...",
    "--- ***",
    "==",
)
_RANGES = (
    *((0x20, 0x7F), (0xA0, 0x250), (0x4E00, 0xA000), (0xAC00, 0xD7A4), (0x3040, 0x3100), (0x400, 0x460)),
    *((0x590, 0x700), (0x900, 0x980), (0xE00, 0xE5C), (0, 32), (0x300, 0x370), (0xF900, 0xFB00)),
)


def random_text(rng: random.Random, specials: list[str]) -> str:
    """A text of a few pieces, each of another kind; no lone surrogates."""
    return "".join(_piece(rng, specials) for _ in range(rng.randint(1, 14)))


def _piece(rng: random.Random, specials: list[str]) -> str:
    kind = rng.randint(0, 10)
    if kind == 0:
        return rng.choice(_SPACES) * rng.randint(1, 9)
    if kind == 10:
        return "".join(rng.choice(_SPACES) for _ in range(rng.randint(2, 5)))
    if kind == 1:
        return "".join(rng.choice("0123456789٣०５²½Ⅷ") for _ in range(rng.randint(1, 9)))
    if kind == 2:
        code = rng.randint(0x80, 0x10FFFF)
        return "?" if 0xD800 <= code < 0xE000 else chr(code)
    if kind == 3:
        return rng.choice(specials) if specials else ""
    if kind == 4:
        return rng.choice("ab▁ ") * rng.randint(1, 40)
    if kind == 5:
        return " " + "".join(rng.choice("etaoinshrdlu") for _ in range(rng.randint(1, 10)))
    if kind == 6:
        return rng.choice(_EMOJI + _CONTRACTIONS + _CODE)
    if kind == 7:
        return rng.choice(_WORDS) * rng.randint(1, 2)
    low, high = rng.choice(_RANGES)
    return "".join(chr(rng.randrange(low, high)) for _ in range(rng.randint(1, 7)))


def write_bpe(
    path: Path,
    pre: str | None,
    template: str | None = None,
    controls: tuple[str, ...] = (),
    whole: tuple[str, ...] = (),
    chatml: bool = True,
) -> Path:
    """A vocabulary-only `gpt2` file whose merges join any two of many characters.

    whole: more tokens, to which no merges lead.
    """
    alphabet = byte_alphabet()
    common = "".join(alphabet[byte] for byte in b" \n\r\t'stremvldaBZTH0195.,!/(<|>[]_-")
    common += "".join(alphabet[byte] for byte in "é你Жา".encode())
    common = "".join(dict.fromkeys(common))
    pairs = [(left, right) for left in common for right in common]
    random.Random(3).shuffle(pairs)
    tokens = [*alphabet.values(), *(left + right for left, right in pairs)]
    special = [("<|endoftext|>", CONTROL), *((text, CONTROL) for text in _CHATML if chatml)]
    special += [("<think>", USER_DEFINED), ("</think>", USER_DEFINED), ("[UNUSED]", USER_DEFINED)]
    special += [(text, CONTROL) for text in controls]
    types = [NORMAL] * len(tokens) + [kind for _, kind in special]
    tokens += [text for text, _ in special]
    tokens += ["".join(alphabet[byte] for byte in text.encode()) for text in whole]
    types += [NORMAL] * len(whole)
    writer = _writer(path, "gpt2", tokens, types, template)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_merges([f"{left} {right}" for left, right in pairs])
    writer.add_bos_token_id(tokens.index("<|endoftext|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>" if chatml else "<|endoftext|>"))
    return _finish(writer, path)


def write_spm(
    path: Path, *, inner_space: bool = False, reachable_controls: bool = False, template: str | None = None
) -> Path:
    """A vocabulary-only `llama` file with random scores, some of them equal."""
    rng = random.Random(4)
    letters = "▁abetoisn.<>/|0你é"
    pieces = list(letters)
    for length, count in ((2, 90), (3, 120), (4, 60), (6, 20)):
        pieces += ["".join(rng.choice(letters[1:]) for _ in range(length)) for _ in range(count)]
        pieces += ["▁" + "".join(rng.choice(letters[1:]) for _ in range(length - 1)) for _ in range(count)]
    pieces += ["▁▁", "▁▁▁▁", "aa", "aaaa", "</", "</s", "<s", "im", "<|", "|>", "_end"]
    pieces += ["<t", "ink>", "h", "<th"] if reachable_controls else []
    pieces += ["a▁t", "o▁", "▁i▁"] if inner_space else []
    # llama.cpp lets plain text merge into a control token where the vocabulary has its halves; we never do.
    halves = {"<s", "s>", "</", "</s", "/s>", "/s"}
    pieces = [piece for piece in dict.fromkeys(pieces) if reachable_controls or piece not in halves]
    head = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL), *((text, CONTROL) for text in _CHATML)]
    head += [("<think>", USER_DEFINED), *((f"<0x{byte:02X}>", BYTE) for byte in range(256))]
    tokens = [text for text, _ in head] + pieces
    types = [kind for _, kind in head] + [NORMAL] * len(pieces)
    writer = _writer(path, "llama", tokens, types, template)
    writer.add_token_scores([0.0] * len(head) + [-float(rng.randint(1, 200)) for _ in pieces])
    return _finish(writer, path)


def _writer(path: Path, model: str, tokens: list[str], types: list[int], template: str | None) -> GGUFWriter:
    writer = GGUFWriter(str(path), "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if template is not None:
        writer.add_chat_template(template)
    return writer


def _finish(writer: GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
