"""What a model takes of memory and how fast it will write, in words."""

from typing import TYPE_CHECKING

from app.settings.words import count_text, size_text, tokens_text

if TYPE_CHECKING:
    from engine import Advice, Fit


def fit_text(fit: "Fit") -> str:
    """Such as `4.7 GB + 1.1 GB KV of 11.2 GB free: six chats of 8k`, and what would help where it is less."""
    from engine import Verdict

    if fit.split is not None:
        return _split_text(fit)
    narrowed = f"{fit.kv_format} " if fit.kv_note else ""
    needed = f"{_size(fit.weight_bytes)} + {_size(fit.kv_bytes)} {narrowed}KV"
    chats = f"chats of {tokens_text(fit.context)}"
    if fit.verdict is Verdict.UNKNOWN or fit.free_bytes is None:
        return f"needs {needed}"
    if fit.verdict is Verdict.FITS:
        if fit.chats_that_fit == 1:
            chats = chats.replace("chats", "chat")
        said = f"{needed} of {_size(fit.free_bytes)} free: {count_text(fit.chats_that_fit)} {chats}"
    elif fit.verdict is Verdict.TOO_LARGE:
        said = f"needs {needed}; {_size(fit.free_bytes)} are free"
    else:
        fitting = f"{count_text(fit.chats_that_fit)} of {count_text(fit.chats)}"
        some = fitting if fit.chats_that_fit else "no"
        said = f"{needed} of {_size(fit.free_bytes)} free: {some} {chats} at once"
    helps = " or ".join(map(advice_text, fit.advice))
    return f"{said}; fits {helps}" if helps else said


def _split_text(fit: "Fit") -> str:
    """Such as `28 of 36 layers on the GPU, 8 on the processor: about 12 tok/s; 2.1 GB + 0.4 GB KV …`."""
    assert fit.split is not None and fit.free_bytes is not None
    host = _size(fit.split.host_bytes)
    if fit.host_short:
        return (
            f"needs {_size(fit.split.device_bytes)} of the GPU's memory and {host} of the computer's, "
            f"where {_size(fit.host_short)} are missing"
        )
    speed = speed_text(fit.tok_s)
    said = f"{fit.split.text}: {speed}" if speed else fit.split.text
    taken = f"{_size(fit.weight_bytes)} + {_size(fit.kv_bytes)} KV of {_size(fit.free_bytes)} free"
    return f"{said}; {taken} on the GPU, {host} in the computer's memory"


def speed_text(tok_s: float | None) -> str:
    """An expected speed: `about 40 tok/s`; "" where it is not known."""
    if tok_s is None:
        return ""
    if tok_s < 1.0:
        return "under 1 tok/s"
    step = 1 if tok_s < 20 else 5 if tok_s < 100 else 10 ** (len(str(int(tok_s))) - 1) // 2
    return f"about {round(tok_s / step) * step:,.0f} tok/s"


def _size(count: int) -> str:
    """A tenth of a gigabyte tells whether something fits."""
    return f"{count / 1e9:.1f} GB" if 1e10 <= count < 1e11 else size_text(count)


def advice_text(advice: "Advice") -> str:
    """What would make it fit, behind the word `fits`."""
    from engine import AdviceKind

    if advice.kind is AdviceKind.CONTEXT:
        return f"with chats of up to {tokens_text(int(advice.value))}"
    if advice.kind is AdviceKind.KV_TYPE:
        return f'with kv_dtype = "{advice.value}"'
    if advice.kind is AdviceKind.WEIGHT_TYPE:
        return f'with weight_dtype = "{advice.value}"'
    return f"as {advice.value}"
