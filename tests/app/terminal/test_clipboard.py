"""Copying: which way is taken and what is said."""

import base64

from app.terminal.clipboard import copy_text, native_commands, osc52


def test_native_tools_only_where_the_desktop_is_ours():
    assert native_commands({"DISPLAY": ":0", "SSH_TTY": "/dev/pts/1"}, "linux") == []
    assert native_commands({}, "darwin") == [["pbcopy"]]
    assert native_commands({"WAYLAND_DISPLAY": "w"}, "linux")[0] == ["wl-copy"]
    assert native_commands({}, "linux") == []


def test_osc52_goes_through_tmux_with_doubled_escapes():
    plain = osc52("hé", in_tmux=False)
    assert base64.b64decode(plain.removeprefix("\x1b]52;c;").removesuffix("\x07")).decode() == "hé"
    assert osc52("x", in_tmux=True) == "\x1bPtmux;\x1b\x1b]52;c;eA==\x07\x1b\\"


def test_the_result_is_told_truly():
    written: list[str] = []
    sent = copy_text("abc", written.append, {}, "linux")
    assert sent.ok and "terminal" in sent.message and len(written) == 1
    refused = copy_text("x" * 200_000, written.append, {}, "linux")
    assert not refused.ok and len(written) == 1
