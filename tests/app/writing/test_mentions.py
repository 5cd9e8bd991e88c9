"""What is being written behind an @, and what it may become."""

import pytest

from app.writing.mentions import entries, mention_before, plain_path


@pytest.mark.parametrize(
    ("before", "written"),
    [
        ("@", ""),
        ("see @src/a", "src/a"),
        ("\t@~/x", "~/x"),
        ("@My\\ Folder/a", "My\\ Folder/a"),
        ("me@home", None),
        ("@a b", None),
        ("", None),
    ],
)
def test_a_mention_begins_at_a_word(before, written):
    assert mention_before(before) == written


@pytest.fixture
def start(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.py").write_text("x")
    (tmp_path / "My Notes").mkdir()
    (tmp_path / "README.md").write_text("x")
    (tmp_path / ".hidden").write_text("x")
    return tmp_path


def test_folders_come_first_and_hidden_files_only_when_asked_for(start):
    assert [entry.written for entry in entries("", start)] == ["My\\ Notes/", "src/", "README.md"]
    assert [entry.written for entry in entries(".h", start)] == [".hidden"]


def test_a_few_letters_find_a_file_in_a_folder_and_absolute_paths_stay_so(start):
    (found,) = entries("src/mn", start)
    assert found.written == "src/main.py" and found.path == start / "src" / "main.py"
    (found,) = entries(f"{start}/rdm", start / "src")
    assert found.written == f"{start}/README.md"


def test_a_home_folder_is_found(start, monkeypatch):
    monkeypatch.setenv("HOME", str(start))
    assert [entry.written for entry in entries("~/s", start)] == ["~/src/", "~/My\\ Notes/"]
    assert entries("~nobody-of-this-name/x", start) == []


def test_what_cannot_be_read_has_no_entries(start):
    assert entries("none/x", start) == [] and entries("README.md/x", start) == []
    assert entries("a\x00/x", start) == []


def test_what_is_written_for_a_name_means_that_name(start):
    (start / "a\\b @c").write_text("x")
    (found,) = entries("@c", start)
    assert plain_path(found.written) == "a\\b @c" and mention_before(f"@{found.written}") == found.written
