"""Extension modules of one name: who loads one keeps its functions, whatever is loaded afterwards."""

import shutil
import threading

import pytest
from triton.runtime import build

from kernels.cuda import launchers

SOURCE = """
#include <Python.h>
static PyObject *number(PyObject *self, PyObject *unused) { return PyLong_FromLong(%d); }
static PyMethodDef methods[] = {{"number", number, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "one_name", NULL, -1, methods};
PyMODINIT_FUNC PyInit_one_name(void) { return PyModule_Create(&definition); }
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("no C compiler")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(build, "_load_module_from_path", build._load_module_from_path)
    return lambda value: build.compile_module_from_src(SOURCE % value, "one_name")


def test_a_second_load_does_not_change_what_others_hold(load):
    launchers.load_one_at_a_time()
    kept = build._load_module_from_path
    launchers.load_one_at_a_time()
    assert build._load_module_from_path is kept
    held = [load(1), load(2), load(1), load(2)]
    assert [module.number() for module in held] == [1, 2, 1, 2]


def test_threads_that_load_at_once_get_their_own(load):
    launchers.load_one_at_a_time()
    values = [1, 2, 3]
    wrong = []

    def loads(value: int) -> None:
        wrong.extend(value for _ in range(200) if load(value).number() != value)

    for value in values:
        load(value)
    threads = [threading.Thread(target=loads, args=(value,)) for value in values * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
