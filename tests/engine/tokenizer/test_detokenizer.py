"""Incremental decoding equals decoding at once."""

from engine.gguf.file import open_gguf
from engine.tokenizer.detokenizer import Detokenizer
from engine.tokenizer.tokenizer import Tokenizer
from tests.perf.detokenizer_fuzz import run
from tests.support.text_samples import write_bpe


def test_random_streams():
    run(5_000)


def test_characters_come_out_whole(tmp_path):
    tokenizer = Tokenizer.from_gguf(open_gguf(write_bpe(tmp_path / "v.gguf", "qwen2")))
    text = "é 你好 👩‍👩‍👧‍👦 end"
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(token) for token in tokenizer.encode(text)]
    assert "".join(pieces) == text and detokenizer.flush() == ""
    assert "\ufffd" not in "".join(pieces) and "" in pieces


def test_an_unfinished_character_is_flushed_as_a_replacement(tmp_path):
    tokenizer = Tokenizer.from_gguf(open_gguf(write_bpe(tmp_path / "v.gguf", "qwen2")))
    ids = tokenizer.encode("a😀")[:-1]
    detokenizer = Detokenizer(tokenizer)
    assert "".join(map(detokenizer.push, ids)) == "a"
    assert detokenizer.flush() == "\ufffd" and tokenizer.decode(ids) == "a\ufffd"
