"""What a file's quantisation is called: "Q4_K_M" and its like."""

from collections import Counter

from engine.gguf.file import GGUFFile
from kernels.quant.formats import GGMLType

_GUESSED_FILE_TYPE = 1024

LLAMA_FTYPE: dict[int, str] = {
    **dict(enumerate(("F32", "F16", "Q4_0", "Q4_1"))),
    **dict(enumerate(("Q8_0", "Q5_0", "Q5_1", "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S"), start=7)),
    **dict(enumerate(("Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "IQ2_XXS", "IQ2_XS", "Q2_K_S"), start=15)),
    **dict(enumerate(("IQ3_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ3_M", "IQ2_S"), start=22)),
    **dict(enumerate(("IQ2_M", "IQ4_XS", "IQ1_M", "BF16"), start=29)),
    **dict(enumerate(("TQ1_0", "TQ2_0", "MXFP4_MOE", "NVFP4", "Q1_0"), start=36)),
}
"""Labels of `general.file_type`, as llama.cpp numbers them."""


def quantization_label(file: GGUFFile) -> str:
    """Such as "Q4_K_M": what `general.file_type` says, else the type of most bytes; "" without weights."""
    number = file.integer("general.file_type")
    label = LLAMA_FTYPE.get(number & ~_GUESSED_FILE_TYPE) if number is not None and number >= 0 else None
    return label or _main_type(file)


def _main_type(file: GGUFFile) -> str:
    """The type that most bytes of the matrices have; vectors stay F32 in every file."""
    nbytes: Counter[GGMLType] = Counter()
    for info in file.tensors.values():
        if len(info.shape) > 1:
            nbytes[info.type] += info.nbytes
    return nbytes.most_common(1)[0][0].name if nbytes else ""
