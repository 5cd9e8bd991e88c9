"""The log: its owner's alone, bounded, and never the reason why something else fails."""

import logging
import os
import sys
from pathlib import Path

import pytest

from app.terminal import log_file
from app.terminal.fd_guard import guarded_descriptors
from app.terminal.log_file import logging_to

LOG = logging.getLogger("tests.log")


def mode(path):
    return path.stat().st_mode & 0o777


def test_it_is_readable_by_its_owner_alone_an_older_one_too(tmp_path):
    path = tmp_path / "logs" / "app.log"
    path.parent.mkdir()
    path.write_text("old\n")
    path.chmod(0o644)
    with logging_to(path):
        LOG.warning("new")
    assert mode(path) == 0o600
    assert path.read_text().startswith("old\n") and "new" in path.read_text()


def test_full_ones_are_kept_beside_it_and_no_more_than_a_few(tmp_path, monkeypatch):
    monkeypatch.setattr(log_file, "_MOST_BYTES", 200)
    path = tmp_path / "app.log"
    with logging_to(path):
        for number in range(60):
            LOG.warning("line %d", number)
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["app.log", "app.log.1", "app.log.2", "app.log.3"]
    assert "line 59" in path.read_text()
    for name in names:
        assert (tmp_path / name).stat().st_size <= 200
        assert mode(tmp_path / name) == 0o600


def test_two_processes_rotate_once(tmp_path, monkeypatch):
    monkeypatch.setattr(log_file, "_MOST_BYTES", 200)
    path = tmp_path / "app.log"
    with logging_to(path):
        LOG.warning("x" * 150)
        # As another process does it.
        path.rename(tmp_path / "app.log.1")
        path.write_text("theirs\n")
        LOG.warning("ours")
    assert "x" * 150 in (tmp_path / "app.log.1").read_text()
    assert "theirs" in path.read_text() and "ours" in path.read_text()
    assert not (tmp_path / "app.log.2").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_no_error(tmp_path, capsys):
    path = tmp_path / "app.log"
    path.symlink_to("/dev/full")
    with logging_to(path):
        LOG.warning("lost")
        LOG.warning("lost too")
    assert capsys.readouterr().err == ""
    assert mode(Path("/dev/full")) == 0o666


def test_where_there_can_be_no_log_the_screen_is_guarded_all_the_same(tmp_path, capfd):
    (tmp_path / "logs").write_text("a file where a folder should be")
    with guarded_descriptors(tmp_path / "logs" / "app.log"):
        os.write(2, b"noise")
        print("drawn", file=sys.__stdout__)
    assert "noise" not in capfd.readouterr().err
