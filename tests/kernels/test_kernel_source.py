"""What Triton's compiler gets wrong without a word, and an interpreter of kernels does not."""

import ast
from collections.abc import Iterator
from pathlib import Path

KERNELS = Path(__file__).parents[2] / "kernels"


def lost_assignments(function: ast.FunctionDef) -> list[str]:
    """Assignments in loops of one name to another that may have been the same value before the loop.

    Triton looks for what a loop changes by going through its body once: there `a = b` changes nothing where
    both are one value, and every turn would begin with the value that `a` had before the loop.
    """
    groups: list[set[str]] = []
    found = []
    for node in sorted(ast.walk(function), key=lambda node: getattr(node, "lineno", 0)):
        if isinstance(node, ast.Assign):
            for names, value in moves(node):
                groups = [group - names for group in groups]
                same = names | passed_on(value)
                joined = [group for group in groups if group & same]
                groups = [group for group in groups if not group & same] + [same.union(*joined)]
        elif isinstance(node, ast.For | ast.While):
            inside = [each for part in node.body for each in ast.walk(part) if isinstance(each, ast.Assign)]
            for each in inside:
                pairs = [names | passed_on(value) for names, value in moves(each)]
                if any(len(group & pair) > 1 for group in groups for pair in pairs):
                    found.append(ast.unparse(each))
    return found


def moves(node: ast.Assign) -> Iterator[tuple[set[str], ast.expr]]:
    """The names that get one value, and that value; those of tuples one by one."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            for name, value in zip(target.elts, node.value.elts, strict=True):
                yield {name.id} if isinstance(name, ast.Name) else set(), value
    yield {target.id for target in node.targets if isinstance(target, ast.Name)}, node.value


def passed_on(value: ast.expr) -> set[str]:
    """The name of a value that is one, also through a conversion, which to the type that it has is none."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "to":
        value = value.func.value
    return {value.id} if isinstance(value, ast.Name) else set()


def kernels_in(source: str) -> list[ast.FunctionDef]:
    return [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in node.decorator_list)
    ]


def all_kernels() -> dict[str, ast.FunctionDef]:
    found = {}
    for path in KERNELS.rglob("*.py"):
        found |= {f"{path.name}: {each.name}": each for each in kernels_in(path.read_text())}
    assert len(found) > 100
    return found


def test_no_loop_loses_an_assignment():
    assert not {name: found for name, each in all_kernels().items() if (found := lost_assignments(each))}


def test_such_assignments_are_found():
    code = """
@triton.jit
def halve(low, high):
    place = low
    total = count = 0
    first, last = high, high
    while place < high:
        low = place.to(tl.int32)
        first, last = last, first + 1
        place = (low + high) // 2
        count += 1
        total = count
        best = total
"""
    (function,) = kernels_in(code)
    assert lost_assignments(function) == [
        "low = place.to(tl.int32)",
        "first, last = (last, first + 1)",
        "total = count",
    ]
    (function,) = kernels_in(code.replace("place = low\n", "place = low + 0\n"))
    assert lost_assignments(function) == ["first, last = (last, first + 1)", "total = count"]


def decided_by_volatile(function: ast.FunctionDef) -> list[str]:
    """Branches on what others may change meanwhile: warps that read it at different times part there.

    Those that take the branch wait for the others at its first barrier, who wait for them at another.
    """
    loads = {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and "volatile=True" in ast.unparse(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    tests = [node.test for node in ast.walk(function) if isinstance(node, ast.If | ast.While)]
    return [
        ast.unparse(test)
        for test in tests
        if any(isinstance(each, ast.Name) and each.id in loads for each in ast.walk(test))
        or "volatile=True" in ast.unparse(test)
    ]


def test_no_branch_is_decided_by_what_others_change():
    assert not {name: found for name, each in all_kernels().items() if (found := decided_by_volatile(each))}


def test_such_branches_are_found():
    code = """
@triton.jit
def add(counter, x):
    length = tl.load(counter, volatile=True)
    if length < 3:
        tl.store(x, length)
    while tl.load(counter, volatile=True) < 3:
        x += 1
    last = tl.where(length < 3, 1, 2)
"""
    (function,) = kernels_in(code)
    assert decided_by_volatile(function) == ["length < 3", "tl.load(counter, volatile=True) < 3"]
