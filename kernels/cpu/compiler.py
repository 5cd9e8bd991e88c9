"""Small CPU kernels written as vector code and compiled in memory by LLVM (through llvmlite).

A kernel is one function `void(int64 *parameters)`; parameters are counts and addresses, the first of
them a counter from which threads draw their next piece of work, so that a thread that the system
preempts delays one piece only. Vectors have 16 float32 lanes whatever the processor: LLVM splits them
where registers are narrower. Kernels run on torch's own OpenMP threads, called through ctypes, which
lets go of the interpreter lock for the whole call.
"""

import ctypes
import hashlib
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import Any, ParamSpec, cast

import llvmlite
from llvmlite import binding, ir

from kernels import machine_cache
from kernels.cpu.team import parallel_call, threads_for

LANES = 16
CACHE_LINE = 64
_PIECES_PER_THREAD = 8

F32 = ir.FloatType()
I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
VECTOR = ir.VectorType(F32, LANES)
INTS = ir.VectorType(I32, LANES)
SHORTS = ir.VectorType(I16, LANES)
_POINTER = ir.PointerType()

_ENTRY = "kernel"
_SOURCES = (
    "cpu/*.py",
    "cpu/packed/*.py",
    "cpu/attention/*.py",
    "cpu/recorded/chain.py",
    "quant/formats.py",
    "quant/nonlinear.py",
)
"""Files of `kernels` that decide what is compiled."""

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.42860682030941723212e-6
_EXP_TERMS = (1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0)
_EXP_LOWEST, _EXP_HIGHEST = -87.0, 88.0

Value = Any
"""An LLVM value; llvmlite has no types of its own to check."""


class Emitter:
    """Writes the body of one kernel."""

    def __init__(self, name: str) -> None:
        self.module = ir.Module(name)
        self.function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), [_POINTER]), _ENTRY)
        self.ir = ir.IRBuilder(self.function.append_basic_block("entry"))

    def const(self, value: int) -> Value:
        """A 64-bit constant."""
        return ir.Constant(I64, value)

    def opaque(self, value: int) -> Value:
        """A constant that LLVM does not know: of loops that it would unroll it mixes the turns, and registers
        do not suffice."""
        kind = ir.FunctionType(I64, [I64])
        return self.ir.asm(kind, "", "=r,0", [self.const(value)], True)

    def vector(self, value: float) -> Value:
        """A vector of one constant."""
        return ir.Constant(VECTOR, [value] * LANES)

    def parameter(self, index: int) -> Value:
        """The 64-bit parameter at `index`."""
        return self.load(self.address(self.function.args[0], self.const(index), I64), I64)

    def pointer(self, index: int) -> Value:
        """The parameter at `index` as an address."""
        return self.ir.inttoptr(self.parameter(index), _POINTER)

    def real(self, index: int) -> Value:
        """The parameter at `index` as the float32 whose bits it holds."""
        return self.ir.bitcast(self.ir.trunc(self.parameter(index), I32), F32)

    def address(self, base: Value, offset: Value, kind: Value = F32) -> Value:
        """Address of element `offset` of an array of `kind`."""
        return self.ir.gep(base, [offset], source_etype=kind)

    def load(self, pointer: Value, kind: Value = VECTOR) -> Value:
        """Load, aligned to single elements."""
        return self.ir.load(pointer, typ=kind, align=_element_bytes(kind))

    def store(self, value: Value, pointer: Value) -> None:
        """Store, aligned to single elements."""
        self.ir.store(value, pointer, align=_element_bytes(value.type))

    def variable(self, initial: Value) -> Value:
        """A variable that lives in a register once optimised."""
        with self.ir.goto_entry_block():
            place = self.ir.alloca(initial.type)
        self.ir.store(initial, place)
        return place

    def array(self, count: int | Value) -> Value:
        """`count` float32 on the stack."""
        with self.ir.goto_entry_block():
            place = self.ir.alloca(F32, count)
            return self.ir.inttoptr(self.ir.ptrtoint(place, I64), _POINTER)

    def bytes(self, count: int) -> Value:
        """`count` bytes on the stack, where a cache line begins."""
        with self.ir.goto_entry_block():
            place = self.ir.alloca(I8, count)
            place.align = CACHE_LINE
            return self.ir.inttoptr(self.ir.ptrtoint(place, I64), _POINTER)

    @contextmanager
    def loop(self, start: Value, stop: Value, step: int = 1) -> Iterator[Value]:
        """`for index in range(start, stop, step)`."""
        counter = self.variable(start)
        head, body, end = (self.function.append_basic_block() for _ in range(3))
        self.ir.branch(head)
        self.ir.position_at_end(head)
        index = self.ir.load(counter, typ=I64)
        self.ir.cbranch(self.ir.icmp_signed("<", index, stop), body, end)
        self.ir.position_at_end(body)
        yield index
        self.ir.store(self.ir.add(index, self.const(step)), counter)
        self.ir.branch(head)
        self.ir.position_at_end(end)

    @contextmanager
    def pieces(self, count: Value, chunk: Value) -> Iterator[Value]:
        """Every index below `count`, drawn from parameter 0 `chunk` at a time by all threads."""
        with self.spans(count, chunk) as (first, end), self.loop(first, end) as index:
            yield index

    @contextmanager
    def spans(self, count: Value, chunk: Value) -> Iterator[tuple[Value, Value]]:
        """The same, from the first to the end of what is drawn at a time."""
        head, body, end = (self.function.append_basic_block() for _ in range(3))
        self.ir.branch(head)
        self.ir.position_at_end(head)
        first = self.ir.atomic_rmw("add", self.function.args[0], chunk, "monotonic")
        self.ir.cbranch(self.ir.icmp_signed("<", first, count), body, end)
        self.ir.position_at_end(body)
        yield first, self.smaller(self.ir.add(first, chunk), count)
        self.ir.branch(head)
        self.ir.position_at_end(end)

    def smaller(self, a: Value, b: Value) -> Value:
        """The smaller of two integers."""
        return self.ir.select(self.ir.icmp_signed("<", a, b), a, b)

    def splat(self, scalar: Value) -> Value:
        """A float32 in every lane."""
        first = self.ir.insert_element(ir.Constant(VECTOR, ir.Undefined), scalar, ir.Constant(I32, 0))
        return self.shuffle(first, [0] * LANES)

    def spread(self, word: Value) -> Value:
        """An int32 in every lane."""
        first = self.ir.insert_element(ir.Constant(INTS, ir.Undefined), word, ir.Constant(I32, 0))
        return self.shuffle(first, [0] * LANES)

    def shuffle(self, value: Value, lanes: list[int]) -> Value:
        """Lanes of `value` in another order."""
        mask = ir.Constant(ir.VectorType(I32, len(lanes)), lanes)
        return self.ir.shuffle_vector(value, value, mask)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once."""
        return self.call("llvm.fma", a, b, c)

    def call(
        self, intrinsic: str, *arguments: Value, result: Value = VECTOR, flags: tuple[str, ...] = ()
    ) -> Value:
        """An LLVM intrinsic on whole vectors."""
        whole = isinstance(arguments[-1].type.element, ir.IntType)
        name = f"{intrinsic}.v{LANES}{'i32' if whole else 'f32'}"
        function = self.module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(result, [argument.type for argument in arguments])
            function = ir.Function(self.module, kind, name)
        return self.ir.call(function, arguments, fastmath=flags)

    def prefetch(self, pointer: Value) -> None:
        """Ask for a cache line that will be read soon; any address may be asked for."""
        kind = ir.FunctionType(ir.VoidType(), [_POINTER, I32, I32, I32])
        name = "llvm.prefetch.p0"
        function = self.module.globals.get(name) or ir.Function(self.module, kind, name)
        self.ir.call(function, [pointer, *(ir.Constant(I32, hint) for hint in (0, 3, 1))])

    def call_at(self, address: Value, result: Value, *arguments: Value) -> Value:
        """The function at a 64-bit address."""
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        return self.ir.call(_FunctionAt(self.ir.inttoptr(address, _POINTER), kind), arguments)

    def sum(self, value: Value) -> Value:
        """The sum of all lanes as a float32."""
        zero = ir.Constant(F32, -0.0)
        return self.call("llvm.vector.reduce.fadd", zero, value, result=F32, flags=("reassoc",))

    def largest(self, value: Value) -> Value:
        """The largest lane as a float32."""
        return self.call("llvm.vector.reduce.fmax", value, result=F32, flags=("nnan", "nsz"))

    def exp(self, x: Value) -> Value:
        """e**x within 2 units in the last place; x is held between -87 and 88."""
        x = self.call("llvm.maxnum", x, self.vector(_EXP_LOWEST))
        x = self.call("llvm.minnum", x, self.vector(_EXP_HIGHEST))
        power = self.call("llvm.rint", self.ir.fmul(x, self.vector(_LOG2_E)))
        rest = self.fma(power, self.vector(-_LN2_HIGH), x)
        rest = self.fma(power, self.vector(-_LN2_LOW), rest)
        value = self.vector(_EXP_TERMS[0])
        for term in _EXP_TERMS[1:]:
            value = self.fma(value, rest, self.vector(term))
        exponent = self.ir.shl(self.ir.fptosi(power, INTS), ir.Constant(INTS, [23] * LANES))
        return self.ir.bitcast(self.ir.add(self.ir.bitcast(value, INTS), exponent), VECTOR)

    def tanh(self, x: Value) -> Value:
        """Within 2e-7."""
        one, two = self.vector(1.0), self.vector(2.0)
        return self.ir.fsub(one, self.ir.fdiv(two, self.ir.fadd(one, self.exp(self.ir.fmul(x, two)))))

    def to_bfloat16(self, part: Value) -> Value:
        """Round to the nearest, ties to even; as 16-bit integers."""
        bits = self.ir.bitcast(part, INTS)
        sixteen, one, half = (ir.Constant(INTS, [value] * LANES) for value in (16, 1, 0x7FFF))
        odd = self.ir.and_(self.ir.lshr(bits, sixteen), one)
        return self.ir.trunc(self.ir.lshr(self.ir.add(bits, self.ir.add(odd, half)), sixteen), SHORTS)

    def finish(self) -> ir.Module:
        """End the function."""
        self.ir.ret_void()
        return self.module


class _FunctionAt:
    """A pointer that llvmlite calls: its own pointers to functions are written as LLVM reads no more."""

    def __init__(self, pointer: Value, kind: ir.FunctionType) -> None:
        self.function_type, self.type = kind, pointer.type
        self.get_reference = pointer.get_reference


Arguments = ParamSpec("Arguments")


def compiled(write: Callable[Arguments, ir.Module]) -> Callable[Arguments, "Kernel"]:
    """Turn what writes a module into what gives its kernel: compiled once, or found where it was kept.

    Arguments are part of the kept kernel's name: their text must say all of them.
    """

    @cache
    @wraps(write)
    def kernel(*arguments: Arguments.args, **named: Arguments.kwargs) -> Kernel:
        key = f"{write.__name__}{arguments}{named}|{_surroundings()}"
        code = machine_cache.find(key)
        if code is None:
            code = machine_code(write(*arguments, **named), _machine())
            machine_cache.keep(key, code)
        return Kernel(code)

    return cast(Callable[Arguments, Kernel], kernel)


def machine_code(module: ir.Module, machine: Any) -> bytes:
    """An object file for one of LLVM's target machines."""
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    options = binding.create_pipeline_tuning_options(speed_level=3)
    passes = binding.create_pass_builder(machine, options)
    passes.getModulePassManager().run(parsed, passes)
    return bytes(machine.emit_object(parsed))


class _Recorder(threading.local):
    launches: "list[Launch] | None" = None
    """What this thread launches, while that is recorded."""


_recorder = _Recorder()


@contextmanager
def recording() -> "Iterator[list[Launch]]":
    """Give the list of what is launched by this thread meanwhile; it runs all the same."""
    launches: list[Launch] = []
    _recorder.launches = launches
    try:
        yield launches
    finally:
        _recorder.launches = None


class Kernel:
    """A compiled kernel."""

    def __init__(self, code: bytes) -> None:
        _machine()
        self._engine = binding.create_mcjit_compiler(binding.parse_assembly(""), _new_machine())
        self._engine.add_object_file(binding.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        self.entry = self._engine.get_function_address(_ENTRY)
        self._call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.entry)
        self._parallel = parallel_call()

    def __call__(self, threads: int, *parameters: int) -> None:
        """Run on `threads` threads; parameters follow the work counter."""
        launch = Launch(self, threads, (ctypes.c_int64 * (1 + len(parameters)))(0, *parameters))
        if _recorder.launches is not None:
            _recorder.launches.append(launch)
        launch()

    def run(self, threads: int, block: int) -> None:
        """With parameters at an address, of which the counter is 0."""
        if threads == 1:
            self._call(block)
        else:
            self._parallel(self.entry, block, threads, 0)


class Launch:
    """A kernel with its parameters, whose memory somebody else keeps."""

    __slots__ = ("_block", "address", "kernel", "threads")

    def __init__(self, kernel: Kernel, threads: int, block: "ctypes.Array[ctypes.c_int64]") -> None:
        self.kernel, self.threads = kernel, threads
        self._block, self.address = block, ctypes.addressof(block)

    def __call__(self) -> None:
        """Run on as many threads."""
        self._block[0] = 0
        self.kernel.run(self.threads, self.address)


def shared_out(items: int, pieces: int = _PIECES_PER_THREAD) -> tuple[int, int, int]:
    """(threads, items, items that a thread draws at once); pieces: draws of a thread, or some more."""
    threads = threads_for(items)
    return threads, items, max(1, items // (threads * pieces))


def float_bits(value: float) -> int:
    """What `Emitter.real` reads."""
    return int.from_bytes(struct.pack("<f", value), "little")


@cache
def wide_registers() -> bool:
    """Whether 32 registers of a whole vector are there (AVX-512)."""
    return bool(binding.get_host_cpu_features().get("avx512f"))


def _element_bytes(kind: Value) -> int:
    element = kind.element if isinstance(kind, ir.VectorType) else kind
    if isinstance(element, ir.IntType):
        return element.width // 8
    return {"half": 2, "float": 4, "double": 8}[str(element)]


def _new_machine() -> Any:
    # LLVM prefers half-width vectors on some AVX-512 processors for the sake of code around them.
    features = binding.get_host_cpu_features().flatten()
    if wide_registers():
        features += ",-prefer-256-bit"
    target = binding.Target.from_default_triple()
    return target.create_target_machine(cpu=binding.get_host_cpu_name(), features=features, opt=3)


@cache
def _surroundings() -> str:
    """All that code depends on besides its kernel's name."""
    folder = Path(__file__).parents[1]
    found = [sorted(folder.glob(pattern)) for pattern in _SOURCES]
    assert all(found), f"{folder}: machine code would not be tied to its sources"
    paths = [path for files in found for path in files]
    sources = hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()
    features = binding.get_host_cpu_features().flatten()
    compiler = f"llvmlite {llvmlite.__version__}, LLVM {binding.llvm_version_info}"
    return "|".join([sources, compiler, binding.get_default_triple(), binding.get_host_cpu_name(), features])


@cache
def _machine() -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return _new_machine()
