import os
import stat
import struct

import gguf as reference
import numpy as np
import pytest

from engine.api.errors import ModelFileError, UnsupportedModelError
from engine.gguf import strings as string_module
from engine.gguf.file import open_gguf
from engine.gguf.header import parse_header
from kernels.quant.formats import GGMLType
from tests.support.gguf_bytes import entry, gguf, sample, tensor, text, value


@pytest.fixture
def write(tmp_path):
    def write(content, name="model.gguf"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


def refused(path, *words):
    with pytest.raises(ModelFileError) as caught:
        open_gguf(path)
    message = str(caught.value)
    assert path.name in message
    assert message.endswith(".")
    for word in words:
        assert word in message, message
    return caught.value


def test_every_value_type_is_read(write):
    with open_gguf(write(sample())) as file:
        assert file.version == 3
        assert file.architecture == "llama"
        assert [file.metadata[f"test.{kind}"] for kind in (0, 1, 2, 3, 4, 5, 10, 11)] == [1] * 8
        assert file.metadata["test.7"] is True
        assert file.number("test.6") == file.number("test.12") == 1.5
        tokens = file.strings("tokenizer.ggml.tokens")
        assert tokens[:2] == ["token0", "token1"]
        assert tokens[40:] == ["", "x" * 300, "é\0\0\0\0\0\0\0\0b"]
        assert file.numbers("tokenizer.ggml.scores").tolist() == [0.5] * 43
        assert file.metadata["test.flags"].tolist() == [True, False, True]
        first, second, third = file.metadata["test.nested"]
        assert first.tolist() == [1, 2]
        assert second == ["a", "b"]
        assert third[0].tolist() == [7]


def test_bytes_of_tensors_are_read_while_the_file_is_open(write):
    with open_gguf(write(sample())) as file:
        info = file.tensors["token_embd.weight"]
        assert (info.shape, info.type, info.nbytes) == ((4, 32), GGMLType.Q8_0, 136)
        data = file.tensor_bytes("token_embd.weight")
        assert data.tolist() == list(range(136))
        assert file.tensor_bytes("blk.0.norm.weight").tolist() == list(range(160, 192))
        assert file.tensors["scalar"].shape == ()
    assert data[5] == 5, "what was read outlives the file object"
    with pytest.raises(ModelFileError, match="closed"):
        file.tensor_bytes("scalar")
    with pytest.raises(ModelFileError, match="closed"):
        file.strings("tokenizer.ggml.tokens")


def test_version_2_has_the_same_layout(write):
    content = bytearray(sample())
    content[4:8] = struct.pack("<I", 2)
    assert open_gguf(write(bytes(content))).version == 2


def test_files_of_the_reference_writer(tmp_path):
    path = tmp_path / "written.gguf"
    writer = reference.GGUFWriter(path, "qwen3")
    words = [f"w{i}" * (i % 90) for i in range(5000)]
    writer.add_token_list(words)
    writer.add_context_length(77)
    writer.add_array("numbers", [1, -2, 3])
    matrix = np.arange(64, dtype=np.float32).reshape(2, 32)
    writer.add_tensor("a", matrix)
    packed = reference.quants.quantize(matrix, reference.GGMLQuantizationType.Q8_0)
    writer.add_tensor("b", packed, raw_dtype=reference.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = open_gguf(path)
    assert file.strings("tokenizer.ggml.tokens") == words
    assert file.integer("qwen3.context_length") == 77
    assert file.numbers("numbers").tolist() == [1, -2, 3]
    assert file.tensors["b"].shape == (2, 32)
    assert file.tensor_bytes("b").tobytes() == packed.tobytes()
    theirs = {t.name: (t.data_offset, t.n_bytes) for t in reference.GGUFReader(path).tensors}
    assert {n: (i.offset, i.nbytes) for n, i in file.tensors.items()} == theirs


@pytest.mark.parametrize("window", [64, 1 << 16])
def test_string_walk_equals_the_plain_loop(write, monkeypatch, window):
    monkeypatch.setattr(string_module, "_WINDOW", window)
    rng = np.random.default_rng(3)
    kinds = [
        lambda n: b"\0" * n,
        lambda n: b"a" * n,
        lambda n: rng.bytes(n),
        lambda n: b"\1\0\0\0\0\0\0\0" * n,
    ]
    words = [
        kinds[rng.integers(4)](int(rng.choice([0, 1, 3, 7, 8, 9, 200, 255, 256, 300]))) for _ in range(3000)
    ]
    words[500:1500] = [b"plain%d" % i for i in range(1000)]
    file = open_gguf(write(gguf([entry("k", 9, (8, words)), entry("after", 0, 9)])))
    assert file.integer("after") == 9
    assert file.strings("k") == [word.decode("utf-8", "replace") for word in words]


def test_typed_getters_name_file_and_key(write):
    file = open_gguf(write(sample()))
    assert file.string("absent") is None
    assert file.integer("absent", 3) == 3
    assert file.strings("absent") == []
    assert len(file.numbers("absent")) == 0
    for getter, key in [
        (file.string, "test.4"),
        (file.integer, "test.7"),
        (file.integer, "test.6"),
        (file.number, "general.architecture"),
        (file.boolean, "test.0"),
        (file.strings, "tokenizer.ggml.scores"),
        (file.numbers, "tokenizer.ggml.tokens"),
    ]:
        with pytest.raises(ModelFileError) as caught:
            getter(key)
        assert key in str(caught.value)
        assert "model.gguf" in str(caught.value)


F32 = [tensor("t", [8], 0, 0)]
BROKEN = {
    "array type": (gguf([entry("k", 4, 1)[:-8] + struct.pack("<II", 99, 0)]), "k at byte", "99"),
    "array count": (gguf([text("k") + struct.pack("<IIQ", 9, 4, 1 << 62)]), "k at byte", str(1 << 62)),
    "string count": (gguf([text("k") + struct.pack("<IIQ", 9, 8, 1 << 40)]), "k at byte"),
    "string length": (gguf([text("k") + struct.pack("<IQ", 8, 1 << 63)]), "k at byte"),
    "string array item": (
        gguf([text("k") + struct.pack("<IIQQ", 9, 8, 1, 1 << 50)]),
        "k at byte",
        "string 0",
    ),
    "key length": (
        gguf(counts=(0, 1), entries=[struct.pack("<Q", 1 << 60) + b"x" * 40]),
        "metadata key 0 at byte 24",
    ),
    "key utf-8": (gguf([text(b"\xff\xfe") + struct.pack("<II", 4, 1)]), "metadata key 0", "UTF-8"),
    "empty key": (gguf([text("") + struct.pack("<II", 4, 1)]), "metadata key 0"),
    "same key twice": (gguf([entry("k", 4, 1), entry("k", 4, 2)]), "'k'", "twice"),
    "boolean": (gguf([text("k") + struct.pack("<IB", 7, 2)]), "k at byte", "boolean"),
    "nesting": (gguf([entry("k", 9, (9, [(9, [(9, [(9, [(4, [1])])])])]))]), "nested"),
    "number of entries": (gguf(counts=(0, 1 << 63)), "number of metadata entries at byte 16"),
    "number of tensors": (gguf(counts=(1 << 63, 0)), "number of tensors at byte 8"),
    "alignment 0": (gguf([entry("general.alignment", 4, 0)]), "general.alignment at byte", "power of two"),
    "alignment 48": (gguf([entry("general.alignment", 4, 48)]), "general.alignment", "48"),
    "alignment type": (gguf([entry("general.alignment", 8, "x")]), "general.alignment at byte"),
    "five dimensions": (gguf(tensors=[tensor("t", [1] * 5)]), "'t'", "5 dimensions"),
    "many dimensions": (gguf(tensors=[tensor("t", [1], n_dims=(1 << 32) - 1)]), "'t'"),
    "dimension of 0": (gguf(tensors=[tensor("t", [8, 0])], data=b"\0" * 64), "'t'", "dimension of 0"),
    "overflowing dims": (gguf(tensors=[tensor("t", [1 << 32, 1 << 32, 4])], data=b"\0" * 64), "'t'"),
    "wrapping dims": (gguf(tensors=[tensor("t", [1 << 63, 2])], data=b"\0" * 64), "'t'"),
    "tensor offset": (gguf(tensors=[tensor("t", [8], 0, 1 << 40)], data=b"\0" * 64), "offset of tensor 't'"),
    "huge offset": (
        gguf(tensors=[tensor("t", [8], 0, (1 << 64) - 32)], data=b"\0" * 64),
        "offset of tensor 't'",
    ),
    "unaligned": (
        gguf(tensors=[tensor("t", [2], 0, 8)], data=b"\0" * 64),
        "offset of tensor 't'",
        "multiple of 32",
    ),
    "truncated data": (gguf(tensors=F32, data=b"\0" * 31), "'t'", "download it again"),
    "partial blocks": (gguf(tensors=[tensor("t", [48], 8)], data=b"\0" * 64), "'t'", "Q8_0 blocks of 32"),
    "same tensor twice": (gguf(tensors=F32 * 2, data=b"\0" * 64), "'t'", "twice"),
    "unknown type": (gguf(tensors=[tensor("t", [8], 77)], data=b"\0" * 64), "'t'", "77", "Q4_K"),
    "removed type": (gguf(tensors=[tensor("t", [8], 31)], data=b"\0" * 64), "Q4_0_4_4", "Q4_0"),
    "version 1": (gguf(version=1), "version 1", "byte 4"),
    "version 9": (gguf(version=9), "version 9"),
    "big endian": (gguf(version=3 << 24), "big-endian"),
    "byte-swapped magic": (gguf(magic=b"FUGG"), "big-endian"),
    "empty": (b"", "empty"),
    "magic only": (b"GGUF", "version at byte 4"),
    "half a header": (b"GGUF\3\0\0\0\0\0", "header at byte 0", "truncated"),
    "safetensors": (struct.pack("<Q", 20) + b'{"a":{"dtype":"F32"}' + b"\0" * 20, "safetensors", "convert"),
    "ggml": (b"lmgg" + b"\0" * 40, "GGML", "convert"),
    "pytorch": (b"PK\3\4" + b"\0" * 40, "PyTorch"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
    "html": (b"<!DOCTYPE html><html>", "web page"),
    "zeros": (b"\0" * 100, "zeros"),
    "text": (b"hello world, no model here", "not a GGUF file"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_file_is_refused_with_file_field_and_offset(write, case):
    content, *words = BROKEN[case]
    refused(write(content), *words)


def test_overlapping_tensors_are_refused_where_they_are_read(write):
    tensors = [tensor("a", [16], 0, 0), tensor("b", [8], 0, 32), tensor("c", [8], 0, 64)]
    file = open_gguf(write(gguf(tensors=tensors, data=b"\0" * 96)))
    for name in "ab":
        with pytest.raises(ModelFileError, match="overlaps"):
            file.tensor_bytes(name)
    assert file.tensor_bytes("c").size == 32


def test_unsupported_is_told_apart_from_broken(write):
    assert isinstance(refused(write(gguf(version=1))), UnsupportedModelError)
    assert not isinstance(refused(write(b"GGUF")), UnsupportedModelError)


def test_what_is_no_file_is_refused_at_once(tmp_path):
    refused(tmp_path, "folder")
    refused(tmp_path / "absent.gguf", "no such file")
    fifo = tmp_path / "pipe.gguf"
    os.mkfifo(fifo)
    refused(fifo, "pipe")
    loop = tmp_path / "loop.gguf"
    loop.symlink_to(loop)
    refused(loop, "symbolic links")
    with pytest.raises(ModelFileError, match="device"):
        open_gguf("/dev/zero")
    with pytest.raises(ModelFileError):
        open_gguf("nul\0byte.gguf")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file_is_named(write):
    path = write(sample())
    path.chmod(stat.S_IWUSR)
    refused(path, "permission")


def test_every_truncation_is_refused(write):
    content = sample()
    path = write(content)
    for length in reversed(range(len(content))):
        os.truncate(path, length)
        with pytest.raises(ModelFileError):
            parse_header(path)


def test_large_vocabulary_is_quick(write):
    words = [f"word{i}" for i in range(150_000)]
    path = write(gguf([entry("t", 9, (8, words))]))
    import time

    started = time.thread_time()
    header = parse_header(path)
    parsed = time.thread_time()
    assert header.metadata.strings("t") == words
    assert parsed - started < 0.2
    assert time.thread_time() - parsed < 0.5


def test_long_texts_are_decoded_when_asked_for(write):
    long = "ä" * 100_000
    file = open_gguf(write(gguf([text("k") + struct.pack("<I", 8) + value(8, long)])))
    assert file.string("k") == long
