"""Triton's interpreter with exact sums, without work that changes no result: that took over half."""

from dataclasses import replace
from typing import Any

import numpy as np
from triton.language import core
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
    _keep_types()
    _sum_exactly()


def _sum_exactly() -> None:
    """Add products in float64, where sums of a tile's float16 products are exact.

    A BLAS adds a row's products in an order that depends on the row's place in a tile, which no GPU does:
    equal bits could not be told from luck.
    """
    product = interpreter.InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
        if a.data.dtype.kind != "f" or b.data.dtype.kind != "f":
            return product(self, a, b, d, *options)
        total = np.matmul(a.data, b.data, dtype=np.float64) + d.data
        return interpreter.TensorHandle(total.astype(d.data.dtype), d.dtype.scalar)

    interpreter.InterpreterBuilder.create_dot = create_dot  # type: ignore[method-assign]


def _keep_types() -> None:
    """Make what describes a type and a shape once, and shapes comparable by identity: every operation made
    and compared them anew."""
    new_block, new_tensor, same = core.block_type.__init__, core.tensor.__init__, core.tuple.__eq__
    blocks: dict[tuple[Any, ...], dict[str, Any]] = {}
    block_shapes: dict[tuple[Any, ...], Any] = {}
    shapes: dict[tuple[Any, ...], tuple[Any, Any]] = {}
    equal = core.constexpr(True)

    def block_init(self: Any, element: Any, shape: Any) -> None:
        sizes = tuple(getattr(size, "value", size) for size in shape)
        # Types of pointers have no hash; their names differ.
        key = str(element), *sizes
        if key not in blocks:
            new_block(self, element, shape)
            self.shape = block_shapes.setdefault(sizes, self.shape)
            blocks[key] = dict(self.__dict__)
        self.__dict__.update(blocks[key])

    def tensor_init(self: Any, handle: Any, kind: Any) -> None:
        sizes = tuple(kind.shape) if kind.is_block() else ()
        if sizes not in shapes:
            new_tensor(self, handle, kind)
            shapes[sizes] = self.shape, self.numel
        self.shape, self.numel = shapes[sizes]
        self.handle, self.type, self.dtype = handle, kind, kind.scalar

    core.block_type.__init__ = block_init  # type: ignore[method-assign]
    core.tensor.__init__ = tensor_init  # type: ignore[method-assign]
    core.tuple.__eq__ = lambda self, other: equal if other is self else same(self, other)  # type: ignore
