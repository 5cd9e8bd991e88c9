"""A model file that is cut short, written to or removed while it is read or used: an error at most."""

import os
from pathlib import Path

import numpy as np
import pytest

from engine.api.errors import ModelFileError
from engine.catalog import summarize
from engine.engine import Engine
from engine.gguf import source as source_module
from engine.gguf.file import open_gguf
from engine.gguf.source import open_source
from tests.engine.test_engine_lifecycle import new_engine, request
from tests.support.tiny_gguf import make_tiny


@pytest.fixture(scope="module")
def engine():
    with new_engine() as made:
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return make_tiny(tmp_path / "one.gguf", "qwen3", quant="Q8_0", seed=1)


def load_and(engine: Engine, file: Path, at: str, change):
    """Load a file that is changed when the load has come to a step."""

    def progress(_part: float, what: str) -> None:
        if what.startswith(at):
            change(file)

    return engine.load(file, progress=progress)


def open_descriptors() -> int:
    """How many this process has, where that can be seen."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


def cut(file: Path) -> None:
    os.truncate(file, 5000)


def empty(file: Path) -> None:
    os.truncate(file, 0)


def rewrite(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.seek(-100, os.SEEK_END)
        opened.write(bytes(100))
    os.utime(file, ns=(1, 1))


@pytest.mark.parametrize("change", [cut, empty])
@pytest.mark.parametrize("at", ["layer 1", "layer 2", "output"])
def test_a_file_cut_short_while_it_is_loaded_is_an_error_that_names_it(engine, file, at, change):
    with pytest.raises(ModelFileError, match=r"one\.gguf: tensor '.*' at byte \d+: the file ends here now"):
        load_and(engine, file, at, change)
    assert engine.stats().models == ()


def test_a_file_written_to_while_it_is_loaded_is_refused(engine, file):
    with pytest.raises(ModelFileError, match=r"one\.gguf: was changed while it was read"):
        load_and(engine, file, "output", rewrite)


def test_a_file_that_is_removed_while_it_is_loaded_is_loaded(engine, file):
    model = load_and(engine, file, "layer 1", Path.unlink)
    model.unload()


def test_a_loaded_model_needs_its_file_no_more(engine, file):
    model = engine.load(file)
    wanted = model.submit(request(tokens=8)).result(60)
    empty(file)
    assert model.submit(request(tokens=8)).result(60)[0] == wanted[0]
    model.unload()


def test_a_header_cut_short_while_it_is_read_is_an_error(file, monkeypatch):
    """What a list of models meets where one is being downloaded again."""
    real = source_module.Source.read

    def read(source, offset, nbytes):
        if offset > 100:
            os.truncate(file, 64)
            source._window = b""
        return real(source, offset, nbytes)

    monkeypatch.setattr(source_module.Source, "read", read)
    with pytest.raises(ModelFileError, match=r"one\.gguf: header at byte \d+: the file ends here now"):
        open_gguf(file)
    assert not summarize(file).supported


def test_arrays_decoded_after_the_file_was_cut_short_are_an_error(file):
    with open_gguf(file) as opened:
        os.truncate(file, 64)
        with pytest.raises(ModelFileError, match="ends here now"):
            opened.strings("tokenizer.ggml.tokens")


def test_what_the_disk_cannot_read_is_an_error(file, monkeypatch):
    def fail(*_args):
        raise OSError(5, "Input/output error")

    source = open_source(file)
    for read in ("pread", "preadv"):
        monkeypatch.setattr(source_module.os, read, fail)
    with pytest.raises(
        ModelFileError, match=r"one\.gguf: header at byte 0: cannot be read: input/output error"
    ):
        source.u32("header", 0)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="this system takes no advice on files")
@pytest.mark.parametrize("refused", [False, True])
def test_nothing_is_read_ahead_of_a_header_that_is_only_shown(file, monkeypatch, refused):
    advised = []

    def advise(_descriptor, first, nbytes, advice):
        advised.append((first, nbytes, advice))
        if refused:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(source_module.os, "posix_fadvise", advise)
    open_gguf(file).close()
    assert advised == []
    assert summarize(file).supported
    assert advised == [(0, 0, os.POSIX_FADV_RANDOM)]


def test_a_source_is_closed_when_nobody_holds_it(file):
    before = open_descriptors()
    for _ in range(50):
        opened = open_gguf(file)
        stored = opened.stored(next(iter(opened.tensors)))
        del opened
        stored.read_into(np.empty(stored.nbytes, dtype=np.uint8))
        del stored
        open_gguf(file).close()
        empty_file = file.with_name("empty.gguf")
        empty_file.touch()
        with pytest.raises(ModelFileError, match="empty"):
            open_gguf(empty_file)
        empty_file.write_bytes(b"GGUF" + bytes(100))
        with pytest.raises(ModelFileError):
            open_gguf(empty_file)
        empty_file.unlink()
    assert open_descriptors() < before + 20
