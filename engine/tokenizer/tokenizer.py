"""Text ↔ token ids, from the tokenizer that a GGUF file carries."""

import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Protocol

import numpy as np

from engine.api.answer_format import MARKERS
from engine.api.errors import TokenizerError
from engine.api.tool_format import TOOL_MARKERS
from engine.gguf.file import GGUFFile, open_gguf
from engine.tokenizer.bpe import BytePairEncoder, byte_alphabet
from engine.tokenizer.pretokenizers import DEFAULT, NOT_BYTE_LEVEL, PRE_TOKENIZERS, PreTokenizer
from engine.tokenizer.spm import SPACE, CharacterPairEncoder, SentencePieceEncoder, rank_of_scores
from engine.tokenizer.vocabulary import TokenType, Vocabulary, read_vocabulary

_KEY = "tokenizer.ggml."
_SUPPORTED = "gpt2 (byte-level BPE), llama (SentencePiece) and gemma4 (BPE on characters)"
_WHITE_SPACE = " \t\n\v\f\r"
_BRACKETS = frozenset("<>[]{}|｜⟨⟩«»")
_HTML = re.compile(
    r"</?(?:table|caption|thead|tbody|tfoot|tr|th|td|h[1-6]|blockquote|ul|ol|li|strong|em|code|sub|sup|br|p)>"
)
_BYTE_TEXTS = tuple(f"<0x{byte:02X}>" for byte in range(256))


class _Encoder(Protocol):
    def encode(self, text: str) -> list[int]: ...


class Tokenizer:
    """A model's tokenizer. Safe to use from several threads.

    Plain text never becomes a control token: those are not among the tokens that merging can reach,
    and their text is only looked for with `special=True`. User-defined tokens are cut out of plain
    text, as in llama.cpp; in contents of a conversation those that look like markup are not.
    """

    def __init__(self, vocabulary: Vocabulary, encoder: _Encoder, *, model: str) -> None:
        self._vocabulary = vocabulary
        self._encoder = encoder
        self._writes_spaces = model != "gpt2"
        special = vocabulary.special
        self.model = model
        self.vocab_size = len(vocabulary.tokens)
        self.bos_id = special.get("bos")
        self.eos_id = special.get("eos")
        self.eot_id = special.get("eot")
        self.pad_id = special.get("padding")
        self.add_bos = False
        self.add_eos = False
        self.space_prefix = False
        self.eog_ids = vocabulary.eog
        self.suppressed_ids = vocabulary.suppressed
        self.warning: str | None = None
        controls, defined = vocabulary.controls, vocabulary.user_defined
        guarded = {text: i for text, i in defined.items() if _looks_like_markup(text)}
        self.control_tokens: Mapping[str, int] = {**controls, **guarded}
        """Text → id of every token that contents of a conversation must never produce."""
        self.markers: Mapping[int, str] = {
            i: text for text, i in self.control_tokens.items() if text in MARKERS | TOOL_MARKERS
        }
        """Id → text of the tokens that may part a thought, or a call of a tool, from an answer."""
        self._control_ids = frozenset(controls.values())
        harmless = {text: i for text, i in defined.items() if text not in guarded}
        self._cut_all = _SpecialTexts({**controls, **defined})
        self._cut_plain = _SpecialTexts(defined)
        self._cut_content = _SpecialTexts(harmless)
        self._bytes: dict[int, bytes] = {}
        self._alphabet = {char: byte for byte, char in byte_alphabet().items()}

    @classmethod
    def from_file(cls, path: str | Path) -> "Tokenizer":
        """Read a model file's tokenizer alone; raises what `open_gguf` and `from_gguf` raise."""
        with open_gguf(path) as file:
            return cls.from_gguf(file)

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> "Tokenizer":
        """Build the tokenizer that `file` describes; TokenizerError names what is wrong with it."""
        model = file.string(_KEY + "model")
        if model == "gpt2":
            return _from_bpe(file)
        if model == "llama":
            return _from_spm(file)
        if model == "gemma4":
            return _from_character_bpe(file)
        if model is None or model in ("none", "no_vocab"):
            raise TokenizerError(
                f"{file.path}: the file holds no tokenizer ({_KEY}model); choose another file."
            )
        raise TokenizerError(
            f"{file.path}: the tokenizer type {model!r} ({_KEY}model) is not supported; "
            f"supported are {_SUPPORTED}."
        )

    def encode(self, text: str, *, special: bool = False, first: bool = True) -> list[int]:
        """Ids of `text`, never with a BOS of its own.

        special: the text of control tokens becomes those tokens; otherwise no control token comes out
        (user-defined tokens do, as in llama.cpp).
        first: the text starts the sequence or follows a control token, which decides on the space that
        SentencePiece vocabularies put before it.
        """
        cut = self._cut_all if special else self._cut_plain
        return self._encode_parts(cut.split(_clean(text), self._vocabulary.strips_right), first)

    def encode_content(self, text: str, *, first: bool = True) -> list[int]:
        """Ids of text that a person, a file or a model wrote: nothing in `control_tokens` comes out."""
        return self._encode_parts(self._cut_content.split(_clean(text), frozenset()), first)

    def split_special(self, text: str) -> list[str | int]:
        """`text` cut at special tokens: their ids, and the plain text between them."""
        return self._cut_all.split(_clean(text), self._vocabulary.strips_right)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; b"" for control tokens and ids outside the vocabulary."""
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._to_bytes(token_id)
        return found

    def token_text(self, token_id: int) -> str:
        """A token as the vocabulary writes it, such as "<|im_end|>", for display."""
        if not 0 <= token_id < self.vocab_size:
            return f"[{token_id}]"
        text = self._vocabulary.tokens[token_id]
        if self.is_control(token_id):
            return text
        return self.token_bytes(token_id).decode("utf-8", "replace") or text

    def is_control(self, token_id: int) -> bool:
        """Whether the token is a control token, which `decode` leaves out."""
        return token_id in self._control_ids

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of `ids`. Bytes that are no UTF-8 become U+FFFD; `special` shows control tokens."""
        parts = [self.piece(token_id, special=special) for token_id in ids]
        if parts:
            parts[0] = self.strip_first(parts[0])
        return b"".join(parts).decode("utf-8", "replace")

    def piece(self, token_id: int, *, special: bool = False) -> bytes:
        """As `token_bytes`, but with `special` also the text of control tokens."""
        if special and token_id in self._control_ids:
            return self._vocabulary.tokens[token_id].encode()
        return self.token_bytes(token_id)

    def strip_first(self, piece: bytes) -> bytes:
        """The first piece of a text without the space that encoding put before it."""
        return piece.removeprefix(b" ") if self.space_prefix else piece

    def _encode_parts(self, parts: list[str | int], first: bool) -> list[int]:
        out: list[int] = []
        for part in parts:
            if isinstance(part, int):
                out.append(part)
                first = True
            else:
                out += self._encoder.encode(self._prepare(part, first))
                first = False
        return out

    def _prepare(self, text: str, first: bool) -> str:
        if not self._writes_spaces:
            return text
        return (" " + text if first and self.space_prefix else text).replace(" ", SPACE)

    def _to_bytes(self, token_id: int) -> bytes:
        if not 0 <= token_id < self.vocab_size:
            return b""
        text, kind = self._vocabulary.tokens[token_id], self._vocabulary.types[token_id]
        if kind == TokenType.USER_DEFINED:
            return text.encode()
        if kind == TokenType.BYTE:
            byte = _byte_of(text)
            return b"" if byte is None else bytes([byte])
        if kind != TokenType.NORMAL:
            return b""
        if self._writes_spaces:
            return text.replace(SPACE, " ").encode()
        alphabet = self._alphabet
        return b"".join(bytes([alphabet[char]]) if char in alphabet else char.encode() for char in text)


class _SpecialTexts:
    """Finds special tokens in text: the longest first, each from left to right, as llama.cpp does."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        ordered = sorted(tokens.items(), key=lambda item: (-len(item[0].encode()), item[1]))
        self._order = {text: rank for rank, (text, _) in enumerate(ordered)}
        self._ids = dict(tokens)
        self._groups = {
            head: list(group) for head, group in groupby(sorted(tokens), key=lambda text: text[:3])
        }

    def split(self, text: str, strips_right: frozenset[int]) -> list[str | int]:
        """`text` as plain parts and ids; empty parts are left out."""
        present = [
            token for head, group in self._groups.items() if head in text for token in group if token in text
        ]
        parts: list[str | int] = [text] if text else []
        for token in sorted(present, key=self._order.__getitem__):
            parts = self._cut(parts, token, self._ids[token] in strips_right)
        return parts

    def _cut(self, parts: list[str | int], token: str, strip: bool) -> list[str | int]:
        out: list[str | int] = []
        for part in parts:
            if isinstance(part, int) or token not in part:
                out.append(part)
                continue
            head, *tails = part.split(token)
            if head:
                out.append(head)
            for tail in tails:
                out.append(self._ids[token])
                tail = tail.lstrip(_WHITE_SPACE) if strip else tail
                if tail:
                    out.append(tail)
        return out


def _from_bpe(file: GGUFFile) -> Tokenizer:
    vocabulary = read_vocabulary(file, "gpt2")
    name = file.string(_KEY + "pre", "")
    if name in NOT_BYTE_LEVEL:
        raise TokenizerError(
            f"{file.path}: {_KEY}pre: {name!r} merges characters, which is not supported in byte-level "
            "vocabularies; choose another file."
        )
    pre = PRE_TOKENIZERS.get(name, DEFAULT)
    tokenizer = Tokenizer(vocabulary, _bpe_encoder(file, vocabulary, pre), model="gpt2")
    tokenizer.add_bos = file.boolean(_KEY + "add_bos_token", pre.add_bos) and tokenizer.bos_id is not None
    tokenizer.add_eos = file.boolean(_KEY + "add_eos_token", False) and tokenizer.eos_id is not None
    if name not in PRE_TOKENIZERS:
        said = f"the pre-tokenizer {name!r} is not known" if name else "the file names no pre-tokenizer"
        tokenizer.warning = (
            f"{file.path.name}: {said}; text is split by default rules and answers may suffer."
        )
    return tokenizer


def _bpe_encoder(file: GGUFFile, vocabulary: Vocabulary, pre: PreTokenizer) -> BytePairEncoder:
    return BytePairEncoder(_reachable(vocabulary), _merges(file), pre)


def _from_character_bpe(file: GGUFFile) -> Tokenizer:
    """A sequence starts with BOS whatever the file says, as in llama.cpp."""
    vocabulary = read_vocabulary(file, "gemma4")
    byte_ids = [vocabulary.ids.get(text, -1) for text in _BYTE_TEXTS]
    encoder = CharacterPairEncoder(_reachable(vocabulary), _merges(file), byte_ids)
    tokenizer = Tokenizer(vocabulary, encoder, model="gemma4")
    tokenizer.add_bos = tokenizer.bos_id is not None
    tokenizer.add_eos = file.boolean(_KEY + "add_eos_token", False) and tokenizer.eos_id is not None
    return tokenizer


def _merges(file: GGUFFile) -> list[str]:
    merges = file.strings(_KEY + "merges")
    if not merges:
        raise TokenizerError(f"{file.path}: {_KEY}merges is missing or empty; get the file anew.")
    return merges


def _reachable(vocabulary: Vocabulary) -> dict[str, int]:
    """Tokens that plain text may become by merging."""
    ids = dict(vocabulary.ids)
    for text in (*vocabulary.controls, *vocabulary.user_defined):
        del ids[text]
    return ids


def _from_spm(file: GGUFFile) -> Tokenizer:
    vocabulary = read_vocabulary(file, "llama")
    scores = _scores(file, len(vocabulary.tokens))
    mergeable = _reachable(vocabulary)
    encoder = SentencePieceEncoder(mergeable, rank_of_scores(mergeable, scores), _byte_ids(vocabulary))
    tokenizer = Tokenizer(vocabulary, encoder, model="llama")
    tokenizer.space_prefix = file.boolean(_KEY + "add_space_prefix", True)
    tokenizer.add_bos = file.boolean(_KEY + "add_bos_token", True) and tokenizer.bos_id is not None
    tokenizer.add_eos = file.boolean(_KEY + "add_eos_token", False) and tokenizer.eos_id is not None
    return tokenizer


def _scores(file: GGUFFile, count: int) -> list[float]:
    scores = file.numbers(_KEY + "scores")
    if len(scores) < count:
        raise TokenizerError(
            f"{file.path}: {_KEY}scores has {len(scores)} entries for {count} tokens; get the file anew."
        )
    if np.isnan(scores[:count]).any():
        raise TokenizerError(
            f"{file.path}: {_KEY}scores holds values that are no numbers; get the file anew."
        )
    return scores[:count].tolist()


def _byte_ids(vocabulary: Vocabulary) -> list[int]:
    unknown = vocabulary.special.get("unknown", -1)
    return [
        vocabulary.ids.get(text, vocabulary.ids.get(chr(byte) if byte < 128 else "", unknown))
        for byte, text in enumerate(_BYTE_TEXTS)
    ]


def _byte_of(text: str) -> int | None:
    """The byte that a token such as "<0x0A>" stands for."""
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        try:
            return int(text[3:5], 16)
        except ValueError:
            return None
    return None


def _looks_like_markup(text: str) -> bool:
    """Whether a user-defined token could steer a chat: brackets, but neither HTML nor a mere sign."""
    return len(text) > 2 and not _BRACKETS.isdisjoint(text) and not _HTML.fullmatch(text)


def _clean(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text
