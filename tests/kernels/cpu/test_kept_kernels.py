"""What is kept: found again, and never used when it is damaged, foreign or writable by others."""

import os
import time
from pathlib import Path

import pytest

pytest.importorskip("llvmlite")

import torch

from kernels import machine_cache
from kernels.cpu import compiler
from kernels.cpu.compiler import Emitter, compiled

CODE = bytes(range(200))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_cache, "_folder", tmp_path / "kernels")
    return tmp_path / "kernels"


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_what_was_kept_is_found_under_its_key_alone(folder):
    assert machine_cache.find("a") is None
    machine_cache.keep("a", CODE)
    assert machine_cache.find("a") == CODE and machine_cache.find("b") is None
    if os.name == "posix":
        assert folder.stat().st_mode & 0o077 == 0


def test_nothing_is_kept_without_a_folder(folder):
    machine_cache.keep_in.__wrapped__(None)
    machine_cache.keep("a", CODE)
    assert machine_cache.find("a") is None and not folder.exists()


@pytest.mark.parametrize("position", [0, 10, 20, 49, 50, 120, -1])
def test_a_damaged_file_is_not_used(folder, position):
    machine_cache.keep("a", CODE)
    path = only_file(folder)
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    assert machine_cache.find("a") is None


@pytest.mark.parametrize("length", [0, 5, 18, 40, 100])
def test_a_cut_file_is_not_used(folder, length):
    machine_cache.keep("a", CODE)
    path = only_file(folder)
    path.write_bytes(path.read_bytes()[:length])
    assert machine_cache.find("a") is None


def test_a_file_moved_to_another_key_is_not_used(folder):
    machine_cache.keep("a", CODE)
    path = only_file(folder)
    machine_cache.keep("b", CODE[1:])
    other = next(one for one in folder.iterdir() if one != path)
    path.replace(other)
    assert machine_cache.find("b") is None


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_a_file_that_others_can_write_is_not_used(folder):
    machine_cache.keep("a", CODE)
    only_file(folder).chmod(0o620)
    assert machine_cache.find("a") is None


def test_a_folder_that_cannot_be_made_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(machine_cache, "_folder", tmp_path / "file" / "kernels")
    machine_cache.keep("a", CODE)
    assert machine_cache.find("a") is None


def test_a_failed_write_leaves_nothing(folder, monkeypatch):
    def fail(self, target):
        raise OSError("no room")

    monkeypatch.setattr(Path, "replace", fail)
    machine_cache.keep("a", CODE)
    assert list(folder.iterdir()) == []


def test_old_files_go(folder):
    machine_cache.keep("a", CODE)
    old = time.time() - 100 * 86400
    os.utime(only_file(folder), (old, old))
    machine_cache.keep("b", CODE)
    assert machine_cache.find("a") is None and machine_cache.find("b") == CODE


def test_what_is_in_use_stays(folder):
    machine_cache.keep("a", CODE)
    old = time.time() - 80 * 86400
    os.utime(only_file(folder), (old, old))
    assert machine_cache.find("a") == CODE
    assert only_file(folder).stat().st_mtime > old + 86400


def number_writer(written):
    def write_number(value: int):
        written.append(value)
        e = Emitter("number")
        e.store(e.vector(float(value)), e.pointer(1))
        return e.finish()

    return write_number


def run(kernel) -> float:
    out = torch.zeros(16)
    kernel(1, out.data_ptr())
    assert bool((out == out[0]).all())
    return float(out[0])


def test_a_kernel_is_compiled_once_and_again_where_its_file_is_damaged(folder):
    written = []
    assert run(compiled(number_writer(written))(7)) == 7 and written == [7]
    assert run(compiled(number_writer(written))(7)) == 7 and written == [7]
    assert run(compiled(number_writer(written))(8)) == 8 and written == [7, 8]
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert run(compiled(number_writer(written))(7)) == 7 and written == [7, 8, 7]


def test_other_sources_or_processors_have_other_kernels(folder, monkeypatch):
    written = []
    compiled(number_writer(written))(7)
    monkeypatch.setattr(compiler, "_surroundings", lambda: "elsewhere")
    compiled(number_writer(written))(7)
    assert written == [7, 7] and len(list(folder.iterdir())) == 2


def test_a_folder_that_cannot_be_written_still_computes(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(machine_cache, "_folder", tmp_path / "file")
    written = []
    assert run(compiled(number_writer(written))(3)) == 3 and written == [3]
