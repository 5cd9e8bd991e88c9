"""What `tokenizer.ggml.pre` means: how byte-level BPE splits text before merging, as data.

A pre-tokenizer is a list of regular expressions applied one after another. Each isolates its matches
inside the pieces that the one before left, and the gaps stay pieces of their own. The syntax is
Oniguruma's, the meaning is llama.cpp's: where its splitters deviate from a model's original
expression, they are followed, so that ids are equal; only where it joins digits to the text before
them (afmoe, tiny_aya) the models' own rule stays.
"""

from dataclasses import dataclass, replace

_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SIGNS}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_NOT_LOWER, _NOT_UPPER = r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_NOT_LOWER}*{_NOT_UPPER}+"
_CASED_END = rf"[^\r\n\p{{L}}\p{{N}}]?{_NOT_LOWER}+{_NOT_UPPER}*"
_SIGNS_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = rf"{_CASED}|{_CASED_END}|\p{{N}}|{_SIGNS_SLASH}|{_SPACES}"
_GPT4O = rf"{_CASED}{_CONTRACTION}?|{_CASED_END}{_CONTRACTION}?|\p{{N}}{{1,3}}|{_SIGNS_SLASH}|{_SPACES}"
_ANY_LETTER = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
_TINY_AYA = rf"{_ANY_LETTER}{_CONTRACTION}?|\p{{N}}{{1,3}}|{_SIGNS_SLASH}|{_SPACES}"
_YOUTU = rf"{_ANY_LETTER}{_CONTRACTION}?|\p{{N}}|{_SIGNS_SLASH}|{_SPACES}"
_ASCII_SIGNS = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
_DEEPSEEK3_WORDS = (
    rf"{_ASCII_SIGNS}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_KANA_HAN = "[一-龥぀-ゟ゠-ヿ]+"
_DIGIT_GROUPS = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
_HAN = r"[一-鿿㐀-䶿\x{20000}-\x{2a6df}\x{2a700}-\x{2ebef}\x{f900}-\x{faff}\x{2f800}-\x{2fa1f}]"
_KIMI_LETTER = rf"[\p{{L}}&&[^{_HAN[1:-1]}]]"
_KIMI = rf"{_HAN}+|[^\r\n\p{{L}}\p{{N}}]?{_KIMI_LETTER}+{_CONTRACTION}?|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"
_FINNISH = r" ?[^(\s|.,!?…。，、।۔،)]+"
_DEEPSEEK_LETTERS = (
    r"A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ"
    r"-ὗὙὛὝὟ-\x{1f7d}ᾀ-ᾴᾶ-ᾼ\x{1fbe}ῂ-ῄῆ-ῌῐ-\x{1fd3}ῖ-\x{1fdb}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212a}"
    r"-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)

# The models' own range has spaces in it, which llama.cpp takes for spaces alone.
_DEEPSEEK_CJK = r"[一-龥ࠀ-一가-퟿&&[^\s]]+"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How one family of byte-level BPE vocabularies treats text."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    """A piece that is a token as a whole becomes that token, whatever the merges say."""
    add_bos: bool = False
    """Used when the file does not say `tokenizer.ggml.add_bos_token`."""


_default = PreTokenizer(
    (
        r"[\p{P}\$\+<=>\^~\|]+",
        _GPT2,
        r"\p{N}+",
        r"[0-9][0-9][0-9]",
    )
)
_gpt2 = PreTokenizer((_GPT2,))
_digits_gpt2 = PreTokenizer((r"\p{N}", _GPT2))
_llama3 = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_dbrx = PreTokenizer((_LLAMA3,))
_qwen2 = PreTokenizer((_QWEN2,))
_gpt4o = PreTokenizer((_GPT4O,))
_deepseek3 = PreTokenizer((r"\p{N}{1,3}", _KANA_HAN, _DEEPSEEK3_WORDS))
_finnish = PreTokenizer((_FINNISH,))
_bailing = PreTokenizer(
    (
        r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])"
        rf"|{_WORD}|\p{{N}}|{_SIGNS}|\s*[\r\n]|\s+(?!\S)|\s+",
    )
)
_tiny_aya = PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", _TINY_AYA))

_FAMILIES: dict[str, PreTokenizer] = {
    "default": _default,
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": _llama3,
    "dbrx smaug-bpe chatglm-bpe": _dbrx,
    "glm4 glm5": replace(_dbrx, ignore_merges=True),
    "jais-2": PreTokenizer(
        (
            rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|\s*[\r\n]+"
            r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)"
            r"|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
        )
    ),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{_DEEPSEEK_LETTERS}]+",
            r"\s?[!-/:-~！-／：-～‘-‟、-。]+",
            r"\s+\z",
            _DEEPSEEK_CJK,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")),
    "deepseek-v3 hunyuan-dense hy_v4 joyai-llm": _deepseek3,
    "spark2_5": PreTokenizer(
        (r"\p{N}{1,3}", _KANA_HAN, _DEEPSEEK3_WORDS.replace(r"[\r\n]*|\s*[\r\n]+", r"|[\r\n]"), r"\p{N}")
    ),
    "youtu": PreTokenizer(
        ("[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+", _YOUTU), ignore_merges=True
    ),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2": _digits_gpt2,
    "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert jina-v1-en "
    "jina-v2-code roberta-bpe mpt olmo jais trillion granite-docling exaone4": _gpt2,
    "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2": _qwen2,
    "qwen35": PreTokenizer((_QWEN35,)),
    "ufakzeka": PreTokenizer((rf"{_WORD}|\p{{N}}|{_SIGNS}|{_SPACES}",)),
    "laguna": PreTokenizer((r"[^\n]+|[\n]+", _QWEN2)),
    "poro-chat bloom gpt3-finnish": _finnish,
    "viking": PreTokenizer((_FINNISH, r"\p{N}")),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": _gpt4o,
    "granite-embed-multi-97m": PreTokenizer(
        (_GPT4O.replace(r"[\p{L}&&", r"[[\p{L}\p{M}]&&"),), ignore_merges=True
    ),
    "tiny_aya cohere2moe": _tiny_aya,
    "superbpe": PreTokenizer((r"\p{N}+", r"\p{N}+?(?=(?:[0-9]{3})+(?![0-9]))")),
    "bailingmoe bailingmoe2 llada-moe": _bailing,
    "seed-coder": PreTokenizer((rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)),
    "kimi-k2": PreTokenizer((_KIMI,)),
    "afmoe": PreTokenizer(
        (
            _DIGIT_GROUPS,
            r"[一-鿿㐀-䶿\x{f900}-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+",
            _DEEPSEEK3_WORDS,
        )
    ),
    "exaone-moe": PreTokenizer(
        (
            rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ),
    "minicpm5": PreTokenizer(
        (r"\p{N}{1,3}", rf"{_CONTRACTION}|{_WORD}|\p{{N}}+|{_SIGNS}|{_SPACES}"), ignore_merges=True
    ),
    "chameleon": PreTokenizer(
        (
            "<sentinel:[0-9]+>",
            "IMGIMG[A-I]{1,4}Z",
            r"[\t\n]|    |  ",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        add_bos=True,
    ),
}

DEFAULT = _default
NOT_BYTE_LEVEL = frozenset(("gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace"))
"""Names of vocabularies that merge characters: by bytes their text would come out as rubbish."""
PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    name: family for names, family in _FAMILIES.items() for name in names.split()
}
"""Name in `tokenizer.ggml.pre` → its splitting rules."""
