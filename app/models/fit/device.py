"""The device that models are for: how it holds them, remembered from the last engine, and what is free."""

import hashlib
import json
import logging
import os
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from app.models.found import ModelSearch
from app.settings.file import EngineSettings
from app.settings.paths import write_atomically

if TYPE_CHECKING:
    from engine import DeviceRules, Fit, Footprint, ModelSummary, Outline, Room

log = logging.getLogger(__name__)

_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, slots=True)
class Memory:
    """A device's rules, and the room that one more model can have there."""

    rules: "DeviceRules"
    room: "Room"
    threads: int = 1
    """Of the processor, for what it computes beside a GPU."""
    others: tuple[str, ...] = ()
    """Further devices of the same kind."""

    def fit(self, summary: "ModelSummary", *, context: int | None = None, chats: int = 1) -> "Fit | None":
        """What a file will take for so many chats of so many tokens; None for what cannot be loaded."""
        if summary.footprint is None:
            return None
        return self.fit_of(summary.footprint, context=context, chats=chats)

    def fit_of(self, footprint: "Footprint", *, context: int | None = None, chats: int = 1) -> "Fit":
        """What weights and KV of these shapes will take."""
        from engine import expected_tok_s, fit

        made = fit(footprint, self.rules, self.room, context=context, chats=chats)
        if made.split is None:
            return made
        return replace(made, tok_s=expected_tok_s(made.split, self.rules, self.threads))

    def holds(self, outline: "Outline") -> bool:
        """Whether all of such a model fits with a chat of 8,192 tokens, as far as anybody knows."""
        from engine import Verdict

        made = self.fit_of(outline.footprint)
        return made.split is None and made.verdict in (Verdict.FITS, Verdict.UNKNOWN)

    @property
    def where(self) -> str:
        """What people call it."""
        return "memory of the GPU" if self.rules.on_gpu else "memory"


def memory_of(search: ModelSearch) -> Memory | None:
    """What there is now; None where settings name a device that is not there.

    Of several GPUs it is that of the one with the most free, where a model would go. Brings torch in where no
    engine of these settings ever ran: call off the UI.
    """
    from engine import EngineError, HostRoom, Room, free_memory

    settings = search.engine
    try:
        devices = device_rules(settings, search.cache)
    except EngineError as error:
        log.warning("what fits is not known: %s", error)
        return None
    free_of = {rules: free_memory(rules) for rules in devices}
    rules = max(devices, key=lambda rules: free_of[rules] or 0)
    free, limit = free_of[rules], settings.vram_limit_bytes
    if free is not None and limit is not None and rules.on_gpu:
        free = min(free, limit)
    host = None
    if rules.host is not None and not settings.batch_independent:
        wanted = {"auto": None, "never": 0}.get(settings.host_layers, settings.host_layers_wanted)
        host = HostRoom(free_memory(rules.host), None if wanted is None else int(wanted))
    threads = settings.threads or os.cpu_count() or 1
    others = tuple(one.device for one in devices if one.title == rules.title and one is not rules)
    return Memory(rules, Room(free, settings.kv_budget_bytes, host), threads, others)


def device_rules(settings: EngineSettings, cache: Path | None) -> "tuple[DeviceRules, ...]":
    """How each device of these settings holds models: as the last engine said, else by asking torch."""
    known = _read(cache / "device.json", _key(settings)) if cache is not None else None
    if known is not None:
        return known
    from app.models.torch_start import import_torch

    import_torch()
    from engine import EngineOptions
    from engine import device_rules as ask

    options = EngineOptions(
        device=settings.device,
        kv_dtype=settings.kv_dtype,
        weight_dtype=settings.weight_dtype,
        batch_independent=settings.batch_independent,
        cache_folder=None if cache is None else cache / "kernels",
    )
    rules = ask(options)
    if cache is not None:
        remember_rules(rules, settings, cache)
    return rules


def remember_rules(rules: "tuple[DeviceRules, ...]", settings: EngineSettings, cache: Path) -> None:
    """Keep what an engine of these settings says, so that lists need no torch."""
    text = json.dumps({"key": _key(settings), "rules": [one.as_data() for one in rules]})
    file = cache / "device.json"
    try:
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            write_atomically(file, text)
    except (OSError, ValueError) as error:
        log.warning("the device's rules are not kept: %s", error)


def _read(file: Path, key: str) -> "tuple[DeviceRules, ...] | None":
    from engine import DeviceRules

    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        rules = tuple(map(DeviceRules.from_data, kept["rules"])) if kept["key"] == key else ()
        return rules or None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _key(settings: EngineSettings) -> str:
    """All that rules depend on and that is known without torch."""
    try:
        driver = _DRIVER.read_text(encoding="utf-8", errors="replace")
    except OSError:
        driver = ""
    parts = (
        *(settings.device, settings.kv_dtype, settings.weight_dtype, settings.batch_independent),
        *(_torch_version(), os.environ.get("CUDA_VISIBLE_DEVICES"), driver),
    )
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def _torch_version() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "not told"
