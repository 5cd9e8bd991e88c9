"""What can be attached, and why other things cannot."""

import os

import pytest

from app.writing import documents
from app.writing.attachment import AttachError, read_attachment

LIMIT = 1000


def refused(path, name="it", limit=LIMIT):
    with pytest.raises(AttachError) as error:
        read_attachment(path, name, limit)
    return str(error.value)


def test_a_file_stands_under_its_name_in_a_fence(tmp_path):
    path = tmp_path / "a.py"
    path.write_bytes("é = 1\r\nb\r\n".encode())
    read = read_attachment(path, "src/a.py", LIMIT)
    assert (read.kind, read.name, read.text) == ("file", "src/a.py", "File src/a.py:\n```py\né = 1\nb\n```")


def test_other_encodings_with_a_mark_are_read(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("hé".encode("utf-16"))
    assert "hé" in read_attachment(path, "a.txt", LIMIT).text


def test_what_is_no_text_or_too_large_is_refused_with_its_reason(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(b"\xff\xfe\xfd")
    assert refused(path) == "it is not text; only text can be attached."
    path.write_bytes(b"a\x00b")
    assert refused(path) == "it is not text; only text can be attached."
    path.write_bytes(b"a" * 1500)
    assert refused(path) == "it has 2 kB, more than 1 kB; attach_limit in the settings allows more."
    path.write_bytes(b" \n")
    assert refused(path) == "it holds no text."
    assert refused(tmp_path / "none") == "it cannot be read (No such file or directory)."


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe") == "it is not a file or a folder."


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "src" / ".git").mkdir()
    (tmp_path / "src" / ".git" / "config").write_text("hidden")
    (tmp_path / "src" / "deep" / "b.md").write_text("second")
    (tmp_path / "src" / "a.py").write_text("first")
    (tmp_path / "src" / "image.png").write_bytes(b"\x89PNG\x00" * 1000)
    return tmp_path / "src"


def test_a_folder_is_its_text_files(folder):
    read = read_attachment(folder, "src/", LIMIT)
    assert (read.kind, read.name) == ("folder", "src")
    assert read.text == (
        "Folder src, 2 files:\n\nFile src/a.py:\n```py\nfirst\n```\n\nFile src/deep/b.md:\n```md\nsecond\n```"
    )


def test_a_folder_of_too_much_or_nothing_is_refused(folder):
    assert refused(folder, limit=8).startswith("it holds more than 8 B of text;")
    (folder / "deep" / "b.md").unlink()
    assert refused(folder / "deep") == "it holds no text files."


@pytest.mark.parametrize("name", ["paper.pdf", "paper.docx"])
def test_a_document_without_its_library_names_the_extra(tmp_path, monkeypatch, name):
    monkeypatch.setattr(documents.importlib.util, "find_spec", lambda name: None)
    (tmp_path / name).write_bytes(b"%PDF")
    assert refused(tmp_path / name, name) == (
        f"{name}: reading it needs the extra documents: pip install 'tui-chat[documents]'."
    )


def test_a_document_is_read_in_a_process_of_its_own(tmp_path, monkeypatch):
    """A module of the library's name stands for it; the reader's folder is none of the process's."""
    (tmp_path / "pypdf.py").write_text(
        "class Page:\n"
        "    def extract_text(self): return 'a page'\n"
        "class PdfReader:\n"
        "    def __init__(self, path):\n"
        "        if 'bad' in path: raise ValueError('no trailer')\n"
        "        self.pages = [Page(), Page()]\n"
    )
    monkeypatch.setattr(documents.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name in ("good.pdf", "bad.pdf"):
        (tmp_path / name).write_bytes(b"%PDF")
    assert read_attachment(tmp_path / "good.pdf", "good.pdf", LIMIT).text == (
        "File good.pdf:\n```\na page\n\na page\n```"
    )
    assert refused(tmp_path / "bad.pdf", "bad.pdf") == "bad.pdf: it cannot be read (ValueError: no trailer)."
