"""The house's rules, checked on the source itself."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import engine

ROOT = Path(__file__).parents[1]
FLOORS = ("kernels", "engine", "app")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_KERNEL_LINES = 100
EMPTY = ("app/__init__.py", "kernels/__init__.py")


def sources():
    found = [path for floor in FLOORS for path in sorted((ROOT / floor).rglob("*.py"))]
    assert len(found) > 30
    return found


def imports(path, *, top_level_only=False):
    """Yield the dotted names that a file imports; skips what stands under TYPE_CHECKING."""
    stack = list(ast.parse(path.read_text()).body)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        elif not (top_level_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)):
            stack += list(ast.iter_child_nodes(node))


def reached(start):
    """All of our modules that importing `start` brings in, and all foreign packages."""
    ours, foreign, waiting = set(), set(), [start]
    while waiting:
        module = waiting.pop()
        path = module_file(module)
        if module in ours or path is None:
            continue
        ours.add(module)
        for name in imports(path, top_level_only=True):
            if name.split(".")[0] in FLOORS:
                waiting.append(name)
            else:
                foreign.add(name.split(".")[0])
    return ours, foreign


def module_file(module):
    base = ROOT / module.replace(".", "/")
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.exists():
            return path
    return None


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_floor_knows_only_those_below(path):
    level = FLOORS.index(path.relative_to(ROOT).parts[0])
    for name in imports(path):
        package = name.split(".")[0]
        if package in FLOORS:
            assert FLOORS.index(package) <= level, f"{path}: imports {name}"
        assert package != "transformers", f"{path}: a package named kernels exists elsewhere"
        assert package != "tests"
        if level < FLOORS.index("app"):
            assert package not in ("textual", "rich"), f"{path}: imports {name}"


def test_the_command_line_reaches_nothing_heavy():
    _, foreign = reached("app.cli.program")
    assert not foreign & {"torch", "textual", "numpy", "gguf", "tokenizers", "sqlite3"}


def test_the_app_starts_without_what_only_tools_need():
    ours, foreign = reached("app.window.app")
    assert "app.tools.servers" in ours
    assert not foreign & {"mcp", "anyio", "jsonschema", "pydantic"}


@pytest.mark.parametrize("name", EMPTY)
def test_package_roots_import_nothing(name):
    assert list(imports(ROOT / name)) == []


def test_the_public_face_of_the_engine_costs_nothing_and_is_whole():
    code = (
        "import sys, engine\n"
        "loaded = [m for m in sys.modules if m in ('torch', 'numpy') or m.startswith('engine.')]\n"
        "assert not loaded, loaded\n"
        "for name in engine.__all__:\n"
        "    assert getattr(engine, name), name\n"
        "    assert name in dir(engine)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = engine.no_such_name


@pytest.mark.parametrize("floor", FLOORS)
def test_every_room_says_what_it_is_for(floor):
    for room in (ROOT / floor).rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(room.read_text())), f"{room} lacks a docstring"


def is_kernel(node):
    """A kernel lists each of some forty arguments on a line of its own."""
    return any("triton.jit" in ast.unparse(decorator) for decorator in node.decorator_list)


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_sizes_and_annotations(path):
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        length = node.end_lineno - node.lineno + 1
        limit = MAX_KERNEL_LINES if is_kernel(node) else MAX_FUNCTION_LINES
        assert length <= limit, f"{path}:{node.lineno}: {node.name} has {length} lines"
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        bare = [a.arg for a in arguments if a.annotation is None and a.arg not in ("self", "cls")]
        assert not bare, f"{path}:{node.lineno}: {node.name}({', '.join(bare)}) lacks annotations"
        assert node.returns is not None, f"{path}:{node.lineno}: {node.name} lacks a return annotation"


def test_the_wheel_holds_every_floor_and_the_themes():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert set(packages) == {*FLOORS, "themes"}
    assert project["project"]["scripts"]["tui-chat"] == "app.cli.program:program"
