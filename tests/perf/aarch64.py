"""Whole passes with the processor's kernels compiled for AArch64 and run by an emulator.

    pip install -e '.[test,fidelity]'
    python -m tests.perf.aarch64 [--model FILE] [--cpu neoverse-n1]

Unicorn is QEMU's translator as a library. A kernel's object file is linked into memory of the emulator,
and this process' memory is mapped at its own addresses, so it works on the same tensors. Prints how far the
logits of prompts and of passes of one to eight rows are from those of the same passes with the kernels of
this processor, and how many kernels ran.
"""

import argparse
import mmap
import struct
import subprocess
import sys
import tempfile
import threading
from bisect import bisect_right
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import torch
import unicorn
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from llvmlite import binding
from unicorn import arm64_const as arm

TRIPLE = "aarch64-unknown-linux-gnu"
_CODE, _STACK, _STOP = 0x10_0000_0000, 0x20_0000_0000, 0x30_0000_0000
_STACK_BYTES = 1 << 20
_PAGE = mmap.PAGESIZE
_HIGHEST = 1 << 48
_MEMSET = struct.pack("<6I", 0xAA0003E3, 0xB4000082, 0x38001461, 0xF1000442, 0x54FFFFC1, 0xD65F03C0)
"""mov x3, x0; cbz x2, end; again: strb w1, [x3], #1; subs x2, x2, #1; b.ne again; end: ret."""

_ABSOLUTE, _PAGE_OF, _LOW_ADD, _JUMP, _CALL = 257, 275, 277, 282, 283
_HALVES = {263: 0, 264: 0, 265: 1, 266: 1, 267: 2, 268: 2, 269: 3}
"""Relocations of moves of 16 bits, and of which ones."""
_LOW_LOADS = {278: 0, 284: 1, 285: 2, 286: 3, 299: 4}
"""Relocations of loads and stores, and by how many bits their offsets are shifted."""


def linked(code: bytes, base: int, outside: dict[str, int]) -> tuple[bytes, int]:
    """(an object file's sections as they lie from `base` on, the address of its kernel).

    outside: addresses of functions that are in no kernel. Raises KeyError for others, and ValueError for a
    relocation that no kernel has had so far.
    """
    file = ELFFile(BytesIO(code))
    image, places = bytearray(), {}
    for index, section in enumerate(file.iter_sections()):
        if section["sh_flags"] & 2:
            align = max(1, section["sh_addralign"])
            image += bytes(-len(image) % align)
            places[index] = len(image)
            image += section.data()
    symbols = file.get_section_by_name(".symtab")
    for section in file.iter_sections():
        if isinstance(section, RelocationSection) and section["sh_info"] in places:
            for entry in section.iter_relocations():
                symbol = symbols.get_symbol(entry["r_info_sym"])
                if symbol["st_shndx"] in places:
                    target = base + places[symbol["st_shndx"]] + symbol["st_value"] + entry["r_addend"]
                else:
                    target = outside[symbol.name]
                relocate(image, places[section["sh_info"]] + entry["r_offset"], base, target, entry)
    kernel = symbols.get_symbol_by_name("kernel")[0]
    return bytes(image), base + places[kernel["st_shndx"]] + kernel["st_value"]


def relocate(image: bytearray, at: int, base: int, target: int, entry: Any) -> None:
    """Write one address into the image (ELF for the Arm 64-bit Architecture, 5.7)."""
    kind = entry["r_info_type"]
    if kind == _ABSOLUTE:
        image[at : at + 8] = target.to_bytes(8, "little")
        return
    word = int.from_bytes(image[at : at + 4], "little")
    if kind == _PAGE_OF:
        pages = ((target >> 12) - ((base + at) >> 12)) & 0x1FFFFF
        word |= (pages & 3) << 29 | (pages >> 2) << 5
    elif kind == _LOW_ADD:
        word |= (target & 0xFFF) << 10
    elif kind in _LOW_LOADS:
        word |= ((target & 0xFFF) >> _LOW_LOADS[kind]) << 10
    elif kind in _HALVES:
        word |= (target >> 16 * _HALVES[kind] & 0xFFFF) << 5
    elif kind in (_JUMP, _CALL):
        word |= ((target - base - at) >> 2) & 0x3FFFFFF
    else:
        raise ValueError(f"relocation {kind} is not known here")
    image[at : at + 4] = word.to_bytes(4, "little")


def regions() -> Iterator[tuple[int, int]]:
    """The parts of this process' memory that hold data, in order."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        places, access, *_, name = (*line.split(maxsplit=5), "")[:6]
        if access[0] == "r" and not name.startswith("[v"):
            first, end = (int(text, 16) for text in places.split("-"))
            yield first, end


class Emulator:
    """One AArch64 processor on this process' memory."""

    calls = 0
    entries: ClassVar[list[int]] = []

    def __init__(self) -> None:
        self.uc = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        self.uc.ctl_set_cpu_model(arm.UC_CPU_ARM64_MAX)
        self.uc.mem_map(_STACK, _STACK_BYTES)
        self.uc.mem_map(_STOP, _PAGE)
        self.uc.reg_write(arm.UC_ARM64_REG_CPACR_EL1, 3 << 20)
        self._lock = threading.Lock()
        """Kernels are compiled ahead by another thread."""
        self._mapped: list[tuple[int, int]] = []
        self._end = _CODE
        self.memset = self._keep(_MEMSET)

    def _share(self) -> None:
        """Map what this process can read and write and the emulator does not know yet.

        All before a kernel runs: an access over two pages of which the second is unknown asks nobody.
        """
        access = unicorn.UC_PROT_READ | unicorn.UC_PROT_WRITE
        for first, end in regions():
            index = bisect_right(self._mapped, (first, _HIGHEST))
            first = max(first, self._mapped[index - 1][1]) if index else first
            while first < end:
                stop = min(end, self._mapped[index][0]) if index < len(self._mapped) else end
                if first < stop:
                    self.uc.mem_map_ptr(first, stop - first, access, first)
                    self._mapped.insert(index, (first, stop))
                    index += 1
                first = self._mapped[index][1] if index < len(self._mapped) else end
                index += 1

    def load(self, code: bytes) -> int:
        """The address of a kernel that can be run from now on."""
        with self._lock:
            image, entry = linked(code, self._end, {"memset": self.memset})
            self._keep(image)
            Emulator.entries.append(entry)
            return entry

    def _keep(self, image: bytes) -> int:
        base = self._end
        self._end += -(-len(image) // _PAGE) * _PAGE
        self.uc.mem_map(base, self._end - base)
        self.uc.mem_write(base, image)
        return base

    def run(self, entry: int, block: int) -> None:
        """Call a kernel with its parameters at an address."""
        with self._lock:
            Emulator.calls += 1
            self._share()
            self.uc.reg_write(arm.UC_ARM64_REG_SP, _STACK + _STACK_BYTES)
            self.uc.reg_write(arm.UC_ARM64_REG_LR, _STOP)
            self.uc.reg_write(arm.UC_ARM64_REG_X0, block)
            self.uc.emu_start(entry, _STOP)


def pretend(cpu: str) -> None:
    """Let kernels be compiled for and run by an emulated processor; before the engine is imported."""
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    features = binding.FeatureMap({"neon": True, "lse": True})
    binding.get_host_cpu_features = lambda: features
    binding.get_host_cpu_name = lambda: cpu
    binding.Target.from_default_triple = classmethod(lambda cls: cls.from_triple(TRIPLE))

    from kernels.cpu import compiler

    emulator, compile_module = Emulator(), compiler.machine_code

    class Emulated(compiler.Kernel):
        def __init__(self, code: bytes) -> None:
            self._entry = emulator.load(code)

        def run(self, threads: int, block: int) -> None:
            emulator.run(self._entry, block)

    def machine_code(module: Any, machine: Any) -> bytes:
        module.triple = TRIPLE
        return compile_module(module, machine)

    compiler.machine_code, compiler.Kernel = machine_code, Emulated


def passes(path: Path) -> torch.Tensor:
    """float32 [P, vocab]: last logits of prompts and of passes of one, two, four and eight rows."""
    from kernels.select import operations_for
    from tests.support.passes import Passes, load_decoder

    torch.set_num_threads(1)
    decoder = load_decoder(path, operations_for("cpu"))
    names = "abcdefgh"
    run = Passes(decoder, {name: [300 + 7 * at + ord(name) for at in range(24)] for name in names})
    found: list[torch.Tensor] = []

    def read(*spans: tuple[str, int]) -> None:
        run.run(*spans)
        found.extend(run.logits[name] for name, _ in spans)

    read(("a", 12))
    read(("a", 1))
    read(("b", 9))
    read(("a", 1), ("b", 1))
    read(*((name, 8) for name in names[2:]))
    read(*((name, 1) for name in names[:4]))
    read(*((name, 1) for name in names))
    return torch.stack(found)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="a GGUF file; the built-in model if not given")
    parser.add_argument("--cpu", default="neoverse-n1", help="as LLVM names it")
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here is None:
        pretend(options.cpu)
    from app.models.builtin import builtin_model_path

    model = options.model or builtin_model_path()
    if options.here is not None:
        torch.save(passes(model), options.here)
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "logits"
        command = [sys.executable, "-m", "tests.perf.aarch64", "--model", str(model), "--here", str(file)]
        subprocess.run(command, check=True)
        expected = torch.load(file).double()
    actual = passes(model).double()
    difference = float(((actual - expected) ** 2).sum() / (expected**2).sum())
    same = int((actual.argmax(-1) == expected.argmax(-1)).sum())
    print(f"{model.name} on {options.cpu}: {Emulator.calls} kernels run, {len(Emulator.entries)} compiled")
    print(f"NMSE {difference:.2e} of {len(actual)} rows' logits, {same} with the same best token")
    print(f"rows with equal bits: {int((actual == expected).all(-1).sum())}")


if __name__ == "__main__":
    main()
