"""GGUF headers built byte by byte, so that tests can write what no writer would."""

import struct

FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(kind, content):
    """The bytes of one value without its type; arrays are (item kind, items)."""
    if kind == 8:
        return text(content)
    if kind == 9:
        item_kind, items = content
        return struct.pack("<IQ", item_kind, len(items)) + b"".join(value(item_kind, item) for item in items)
    return struct.pack("<" + FORMATS[kind], content)


def entry(key, kind, content):
    return text(key) + struct.pack("<I", kind) + value(kind, content)


def tensor(name, dims, kind=0, offset=0, n_dims=None):
    """A tensor description; `dims` innermost first, as in files."""
    count = len(dims) if n_dims is None else n_dims
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", count, *dims, kind, offset)


def gguf(entries=(), tensors=(), data=b"", *, version=3, magic=b"GGUF", counts=None, alignment=32):
    n_tensors, n_entries = counts or (len(tensors), len(entries))
    head = magic + struct.pack("<IQQ", version, n_tensors, n_entries) + b"".join(entries) + b"".join(tensors)
    padding = b"\0" * (-len(head) % alignment) if tensors else b""
    return head + padding + data


def sample():
    """A small well-formed file with every value type, every kind of array and three tensors."""
    entries = [entry("general.architecture", 8, "llama"), entry("llama.context_length", 4, 64)]
    entries += [entry(f"test.{kind}", kind, 1 if kind != 6 and kind != 12 else 1.5) for kind in FORMATS]
    entries += [
        entry(
            "tokenizer.ggml.tokens",
            9,
            (8, [f"token{i}" for i in range(40)] + ["", "x" * 300, "é\0\0\0\0\0\0\0\0b"]),
        ),
        entry("tokenizer.ggml.scores", 9, (6, [0.5] * 43)),
        entry("test.flags", 9, (7, [True, False, True])),
        entry("test.nested", 9, (9, [(4, [1, 2]), (8, ["a", "b"]), (9, [(0, [7])])])),
        entry("general.alignment", 4, 32),
    ]
    tensors = [
        tensor("token_embd.weight", [32, 4], 8, 0),
        tensor("blk.0.norm.weight", [8], 0, 160),
        tensor("scalar", [], 0, 192),
    ]
    return gguf(entries, tensors, bytes(range(196)))
