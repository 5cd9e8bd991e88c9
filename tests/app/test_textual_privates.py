"""What the app uses of Textual that is not promised: each in one module, checked with these versions."""

import ast
import importlib
import inspect
import textwrap
import tomllib
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest
from textual._compositor import Compositor
from textual._xterm_parser import XTermParser
from textual.app import App
from textual.message_pump import MessagePump
from textual.screen import Screen
from textual.scroll_view import ScrollView

from app.terminal.alt_keys import read_alt_keys

CHECKED = ("8.2.8",)
"""Textual versions whose source was read for what stands below."""
USES = {
    "app.screens.compositor": {
        "_compositor": Screen,
        "_dirty_regions": Compositor,
        "_get_renders": Compositor,
    },
    "app.terminal.driver": {"_driver": App},
    "app.transcript.scrolling": {"_scroll_to": ScrollView, "_scroll_update": ScrollView},
    "app.window.leaving": {"_shutdown": App, "_fatal_error": App, "_close_messages_no_wait": App},
}
IMPORTS = {
    "app.screens.compositor": {"textual._compositor"},
    "app.terminal.alt_keys": {"textual._ansi_sequences"},
}
ROOT = Path(__file__).parents[2]
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "app").rglob("*.py"))
    if path.stem not in ("__init__", "__main__")
]


def tree(module):
    return ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())


def attributes(node):
    return {child.attr for child in ast.walk(node) if isinstance(child, ast.Attribute)}


def private(names):
    return {name for name in names if name.startswith("_") and not name.endswith("__")}


def textuals_own(cls):
    """All private names of the Textual classes that a class is made of, those set on `self` too."""
    bases = [base for base in cls.__mro__ if base.__module__.split(".")[0] == "textual"]
    return set().union(*map(privates_of, bases))


@cache
def privates_of(base):
    return private(set(vars(base)) | attributes(ast.parse(textwrap.dedent(inspect.getsource(base)))))


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for names in USES.values() for name, owner in names.items()]
)
def test_textual_still_has_it(owner, name):
    assert hasattr(owner(), name), f"Textual {version('textual')}; checked were {CHECKED}"


@pytest.mark.parametrize(("sequence", "key"), [("\x1b1", "alt+1"), ("\x1b\r", "alt+enter")])
def test_textual_reads_keys_by_the_corrected_table(sequence, key):
    read_alt_keys()
    parser = XTermParser()
    assert [event.key for event in [*parser.feed(sequence), *parser.feed("")]] == [key]


def test_the_oldest_version_that_is_allowed_was_checked():
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    [textual] = [text for text in dependencies if text.startswith("textual")]
    assert textual.removeprefix("textual>=").split(",")[0] == CHECKED[0]


def used(module):
    """The private names of Textual's that a module uses: in classes built on Textual's, and from outside."""
    names = attributes(tree(module)) & {"_driver", "_compositor", "_dirty_regions"}
    for cls in vars(importlib.import_module(module)).values():
        if inspect.isclass(cls) and cls.__module__ == module and issubclass(cls, MessagePump | Compositor):
            own = ast.parse(textwrap.dedent(inspect.getsource(cls)))
            defined = {n.name for n in ast.walk(own) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
            names |= (attributes(own) | defined) & textuals_own(cls)
    return private(names)


@pytest.mark.parametrize("module", MODULES)
def test_a_private_name_is_used_in_its_module_and_in_no_other(module):
    assert used(module) == set(USES.get(module, ()))
    imported = {node.module for node in ast.walk(tree(module)) if isinstance(node, ast.ImportFrom)}
    assert {name for name in imported if name.startswith("textual._")} == IMPORTS.get(module, set())
