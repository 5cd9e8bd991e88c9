"""The vocabulary in a file's metadata: tokens with their types, and which of them mean something.

Types, repairs by token text and defaults follow llama.cpp, so that ids and the end-of-generation set
are the same there and here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from engine.api.errors import TokenizerError
from engine.gguf.file import GGUFFile


class TokenType(IntEnum):
    """Values of `tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_END_OF_TURN = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>",
    "_<EOT>", "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>",
)  # fmt: skip
_END_OF_GENERATION = frozenset(_END_OF_TURN) | {
    "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "</s>", "<|eom_id|>", "[EOS]", "<eos>", "<turn|>",
    "<|tool_response>", "[e~[",
}  # fmt: skip
_FILL_IN_THE_MIDDLE: dict[str, tuple[str, ...]] = {
    "fim_pre": (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
        "<|code_prefix|>", "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
        "<|code_suffix|>", "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
        "<|code_middle|>", "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}  # fmt: skip
_HARMONY = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
_KEY = "tokenizer.ggml."
_SPM_IDS = {"bos": 1, "eos": 2, "unknown": 0}
_PIECE = 1 << 12
"""Tokens at a time."""


@dataclass(slots=True)
class Vocabulary:
    """Tokens by id, and the ids that are special."""

    tokens: list[str]
    types: np.ndarray
    """int32 [tokens], values of `TokenType`."""
    ids: dict[str, int]
    special: dict[str, int] = field(default_factory=dict)
    """bos, eos, eot, eom, unknown, padding, fim_… → id, where the file or the texts name one."""
    eog: frozenset[int] = frozenset()
    strips_right: frozenset[int] = frozenset()
    """Special tokens that swallow the white space behind them."""
    suppressed: frozenset[int] = frozenset()
    """Tokens that no answer may hold."""

    @property
    def controls(self) -> Mapping[str, int]:
        """Text → id of the tokens that plain text never becomes."""
        return self._of_type(TokenType.CONTROL, TokenType.UNKNOWN)

    @property
    def user_defined(self) -> Mapping[str, int]:
        """Text → id of the tokens that are cut out of plain text before anything else."""
        return self._of_type(TokenType.USER_DEFINED)

    def _of_type(self, *types: TokenType) -> dict[str, int]:
        found = np.flatnonzero(np.isin(self.types, types)).tolist()
        return {self.tokens[i]: i for i in found}


def read_vocabulary(file: GGUFFile, model: str) -> Vocabulary:
    """Read and check the vocabulary of tokenizer model `model`; TokenizerError names the field."""
    tokens = _tokens(file)
    ids = _ids_by_text(tokens)
    if len(ids) != len(tokens):
        double = next(text for i, text in enumerate(tokens) if ids[text] != i)
        raise TokenizerError(f"{file.path}: {_KEY}tokens holds {double!r} twice; get the file anew.")
    vocabulary = Vocabulary(tokens, _types(file, len(tokens)), ids)
    vocabulary.special = _special_ids(file, model, len(tokens))
    _find_by_text(vocabulary)
    vocabulary.eog = _end_of_generation(vocabulary)
    vocabulary.strips_right = _strips_right(file, vocabulary)
    listed = file.numbers(_KEY + "suppress_tokens").tolist()
    vocabulary.suppressed = frozenset(int(token) for token in listed if 0 <= token < len(tokens))
    return vocabulary


def _tokens(file: GGUFFile) -> list[str]:
    tokens = file.strings(_KEY + "tokens")
    if not tokens:
        raise TokenizerError(f"{file.path}: {_KEY}tokens is missing or empty, so text cannot be tokenized.")
    if "" in tokens:
        tokens = [text or f"[EMPTY_{i}]" for i, text in enumerate(tokens)]
    return tokens


def _ids_by_text(tokens: list[str]) -> dict[str, int]:
    """Of equal texts the last id; in pieces, since one call holds the interpreter while others answer."""
    ids: dict[str, int] = {}
    for first in range(0, len(tokens), _PIECE):
        ids.update(zip(tokens[first : first + _PIECE], range(first, len(tokens)), strict=False))
    return ids


def _types(file: GGUFFile, count: int) -> np.ndarray:
    types = file.numbers(_KEY + "token_type")
    if not len(types):
        return np.full(count, TokenType.NORMAL, np.int32)
    if len(types) < count:
        raise TokenizerError(
            f"{file.path}: {_KEY}token_type has {len(types)} entries for {count} tokens; get the file anew."
        )
    types = types[:count]
    return np.where((types >= 0) & (types <= TokenType.BYTE), types, TokenType.UNDEFINED).astype(np.int32)


def _special_ids(file: GGUFFile, model: str, count: int) -> dict[str, int]:
    special = dict(_SPM_IDS) if model == "llama" else {}
    names = ("bos", "eos", "eot", "eom", "unknown", "padding", *_FILL_IN_THE_MIDDLE)
    for name in names:
        value = file.integer(f"{_KEY}{name}_token_id")
        if value is not None and 0 <= value < count:
            special[name] = value
    return {name: value for name, value in special.items() if value < count}


def _find_by_text(vocabulary: Vocabulary) -> None:
    wanted = {"eot": _END_OF_TURN, "eom": ("<|eom_id|>",), **_FILL_IN_THE_MIDDLE}
    for name, texts in wanted.items():
        if name in vocabulary.special:
            continue
        found = next((vocabulary.ids[text] for text in texts if text in vocabulary.ids), None)
        if found is not None:
            vocabulary.special[name] = found
            vocabulary.types[found] = TokenType.CONTROL


def _end_of_generation(vocabulary: Vocabulary) -> frozenset[int]:
    ids, types, special = vocabulary.ids, vocabulary.types, vocabulary.special
    eog = {special[name] for name in ("fim_pad", "fim_rep", "fim_sep") if name in special}
    for text in _END_OF_GENERATION & ids.keys():
        eog.add(ids[text])
        types[ids[text]] = TokenType.CONTROL
    for text in _HARMONY:
        if text in ids:
            types[ids[text]] = TokenType.USER_DEFINED
    eog |= {special[name] for name in ("eos", "eot", "eom") if name in special}
    texts = {vocabulary.tokens[i] for i in eog}
    harmony = "<|return|>" in texts and texts & {"<|call|>", "<|calls|>"}
    solar = "<|flush|>" in texts and texts & {"<|call|>", "<|calls|>"}
    if "<|end|>" in texts and (harmony or solar):
        eog.discard(ids["<|end|>"])
        types[ids["<|end|>"]] = TokenType.USER_DEFINED
    if "</s>" in texts and texts & {"<|tool_response>", "<|plamo:eos|>"}:
        eog.discard(ids["</s>"])
        types[ids["</s>"]] = TokenType.NORMAL
    return frozenset(eog)


def _strips_right(file: GGUFFile, vocabulary: Vocabulary) -> frozenset[int]:
    name = file.string("general.name", "").lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset()
    special = {*vocabulary.controls.values(), *vocabulary.user_defined.values()}
    special |= {vocabulary.ids[text] for text in ("</s>",) if text in vocabulary.ids}
    special -= {vocabulary.ids.get(text, -1) for text in ("<unk>", "<s>", "<|endoftext|>")}
    return frozenset(special)
