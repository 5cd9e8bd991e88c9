"""What a terminal is told besides what it shows: its title, and that something is done."""

from collections.abc import Mapping

from app.terminal.controls import clean

KEEP_TITLE, BRING_TITLE_BACK = "\x1b[22;2t", "\x1b[23;2t"
"""Put the title on the terminal's stack, and take it back."""
BELL = "\a"
_MOST = 200
_KITTY_LIKE = ("kitty",)
_OSC_9 = ("iterm.app", "wezterm", "ghostty", "windows_terminal")
_OSC_777 = ("rxvt", "foot")


def title(text: str) -> str:
    """Return what sets the title."""
    return f"\x1b]2;{_plain(text)}\x1b\\"


def notification(how: str, title: str, text: str, environ: Mapping[str, str]) -> str:
    """Return what tells of something in one of the ways of `notify` in the settings; "" for off."""
    in_tmux = "TMUX" in environ
    how = _way(environ) if how == "auto" else how
    head, body = _plain(title).replace(";", ","), _plain(text)
    if how == "off":
        return ""
    if how == "osc9":
        return through_tmux(f"\x1b]9;{head}: {body}\x1b\\", in_tmux)
    if how == "osc777":
        return through_tmux(f"\x1b]777;notify;{head};{body}\x1b\\", in_tmux)
    if how == "osc99":
        said = f"\x1b]99;i=tui-chat:d=0;{head}\x1b\\\x1b]99;i=tui-chat:p=body;{body}\x1b\\"
        return through_tmux(said, in_tmux)
    return BELL


def _way(environ: Mapping[str, str]) -> str:
    """How this terminal is told; tmux lets nothing pass unless it is set up to, but a bell."""
    if "TMUX" in environ:
        return "bell"
    names = f"{environ.get('TERM_PROGRAM', '')} {environ.get('TERM', '')}".lower()
    if "KITTY_WINDOW_ID" in environ or any(name in names for name in _KITTY_LIKE):
        return "osc99"
    if "WT_SESSION" in environ or any(name in names for name in _OSC_9):
        return "osc9"
    if "VTE_VERSION" in environ or any(name in names for name in _OSC_777):
        return "osc777"
    return "bell"


def through_tmux(sequence: str, in_tmux: bool) -> str:
    """Return a sequence as tmux hands it on to its own terminal."""
    if not in_tmux:
        return sequence
    return "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"


def _plain(text: str) -> str:
    return clean(" ".join(text.split()))[:_MOST]
