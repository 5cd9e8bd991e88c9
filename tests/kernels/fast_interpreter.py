"""Triton's interpreter without work that changes no result and reports nothing: it took over half."""

from dataclasses import replace
from typing import Any

from triton.runtime import interpreter

_NEEDED = ("_patch_lang", "_get_np_dtype", "GridExecutor", "interpreter_builder")


def install() -> None:
    """Patch the language once a launch and module, not at every call; compute no check that nobody reads.

    Does nothing in a Triton whose interpreter is made of other parts: that is slow, not wrong.
    """
    if not all(hasattr(interpreter, name) for name in _NEEDED):
        return
    patch_language, run = interpreter._patch_lang, interpreter.GridExecutor.__call__
    find_numpy_type = interpreter._get_np_dtype
    numpy_types: dict[str, Any] = {}
    patched: set[int] = set()
    """Modules, by the id of their globals, for which this launch has patched; it reloads all at its end."""

    def patch_once(fn: Any) -> Any:
        if id(fn.__globals__) in patched:
            return None
        patched.add(id(fn.__globals__))
        return patch_language(fn)

    def launch(self: Any, *args: Any, **kwargs: Any) -> None:
        patched.clear()
        try:
            run(self, *args, **kwargs)
        finally:
            patched.clear()

    def numpy_type(dtype: Any) -> Any:
        if dtype.name not in numpy_types:
            numpy_types[dtype.name] = find_numpy_type(dtype)
        return numpy_types[dtype.name]

    options = interpreter.interpreter_builder.options
    # Without `debug` what this computes for every sum and product is thrown away unread.
    interpreter.interpreter_builder.options = replace(options, sanitize_overflow=options.debug)
    interpreter._patch_lang = patch_once
    interpreter.GridExecutor.__call__ = launch
    interpreter._get_np_dtype = numpy_type
