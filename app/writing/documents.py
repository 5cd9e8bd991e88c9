"""The text of PDF and Word files, read by libraries that come with the extra `documents`.

Such files may be made to harm who reads them: they are read in a process of their own, with a time limit
and a limit of memory.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

SUFFIXES = {".pdf": "pypdf", ".docx": "docx"}
"""Documents that can be read, and the module that reads each."""
_SECONDS = 30.0
_MEMORY = 2 << 30


def document_text(path: Path) -> str:
    """Return a document's text; `ValueError` says why there is none. May take seconds."""
    if importlib.util.find_spec(SUFFIXES[path.suffix.casefold()]) is None:
        raise ValueError("reading it needs the extra documents: pip install 'tui-chat[documents]'")
    # -P: modules of the folder that the reader is in are none of this process's.
    command = [sys.executable, "-P", __file__, str(path)]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"it could not be read within {_SECONDS:.0f} s") from error
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise ValueError(f"it cannot be read ({last or 'no reason was given'})")
    return done.stdout.decode(errors="replace")


def _read_pdf(path: str) -> str:
    from pypdf import PdfReader

    return "\n\n".join(page.extract_text() for page in PdfReader(path).pages)


def _read_docx(path: str) -> str:
    from docx import Document

    return "\n".join(paragraph.text for paragraph in Document(path).paragraphs)


def _main(path: str) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    read = _read_pdf if path.casefold().endswith(".pdf") else _read_docx
    sys.stdout.buffer.write(read(path).encode(errors="replace"))


if __name__ == "__main__":
    _main(sys.argv[1])
