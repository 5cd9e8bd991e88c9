"""The person's settings: a TOML file read into frozen dataclasses.

Every setting is one dataclass field; its type, limits and help stand there and nowhere else. A bad
value or an unknown key becomes a warning that names it, and the default holds for that key alone.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any

from app.settings.paths import write_atomically
from app.settings.reference import commented
from app.settings.toml_text import TomlEditError, edit_toml
from engine import SamplingParams

DEFAULT_THEME = "ink"
_SIZE_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SIZE_UNITS |= {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


def _option(default: Any, help: str, **limits: Any) -> Any:
    return field(default=default, metadata={"help": help, **limits})


@dataclass(frozen=True, slots=True)
class GeneralSettings:
    """How the app looks and behaves."""

    theme: str = _option(
        DEFAULT_THEME, "ink, ember, moss, beacon (dark), linen, frost (light), or a theme of your own"
    )
    panel: str = _option(
        "auto",
        "live panel: auto shows it from 120 columns",
        choices=("auto", "on", "off"),
    )
    confirm_close: bool = _option(True, "ask before closing a tab that is generating")
    restore_tabs: bool = _option(True, "open the tabs of the last time")
    text_width: int = _option(
        100, "most columns of text; a wider window has it in the middle", low=40, high=1000
    )
    enter_sends: bool = _option(True, "Enter sends; otherwise it begins a new line and Ctrl+J sends")
    attach_limit: str = _option(
        "1 MiB", "most text of a file or folder that @ puts into a message, as a size", size=True
    )

    @property
    def attach_limit_bytes(self) -> int:
        """The limit in bytes; auto is the default's."""
        return parse_size(
            GeneralSettings().attach_limit if self.attach_limit == "auto" else self.attach_limit
        )


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How the engine runs; a change takes effect at the next start."""

    device: str = _option("auto", "auto, cpu, cuda or cuda:N")
    kv_budget: str = _option(
        "auto", 'memory for the context of all chats together: auto or a size such as "2 GiB"', size=True
    )
    vram_limit: str = _option(
        "auto",
        "most memory of a GPU, weights and all: auto or a size; also tui-chat --vram-limit 12GiB",
        size=True,
    )
    host_kv: str = _option(
        "auto",
        "host memory, of each model, for contexts that a full GPU had to put aside: auto or a size; "
        '"0 GiB" for none',
        size=True,
    )
    kv_disk: str = _option(
        "auto",
        "disk space for contexts of chats, so that they need not be read again after a restart: auto (a "
        'tenth of what is free, at most 8 GiB) or a size; "0 GiB" for none',
        size=True,
    )
    kv_dtype: str = _option(
        "auto",
        "type of the context in memory; auto: q8_0, half of float16, where a wider type leaves too little "
        "room, and the panel says so; a type that is named is kept",
        choices=("auto", "float32", "bfloat16", "float16", "q8_0"),
    )
    weight_dtype: str = _option(
        "auto", "type that weights are computed in", choices=("auto", "float32", "bfloat16")
    )
    threads: int = _option(0, "processor threads of the engine; 0 chooses", low=0, high=1024)
    tick_factor: float = _option(
        2.0, "how much longer than an idle tick one may last while prompts are read", low=1.0, high=100.0
    )
    idle_unload_minutes: int = _option(
        0,
        "put models aside that nobody asks for so long; 0 never: whoever needs their memory gets it anyway",
        low=0,
        high=10_000,
    )
    speculation: str = _option(
        "auto",
        "guess tokens from the text so far where that is quicker; the answers are the same",
        choices=("auto", "off"),
    )
    batch_independent: bool = _option(
        False, "on a GPU: an answer's bits do not depend on what else runs; several times slower"
    )

    @property
    def kv_budget_bytes(self) -> int | None:
        """The KV budget in bytes; None lets the engine choose."""
        return None if self.kv_budget == "auto" else parse_size(self.kv_budget)

    @property
    def host_kv_bytes(self) -> int | None:
        """The host memory in bytes; None lets the engine choose."""
        return None if self.host_kv == "auto" else parse_size(self.host_kv)

    @property
    def kv_disk_bytes(self) -> int | None:
        """The disk space in bytes; None lets the engine choose."""
        return None if self.kv_disk == "auto" else parse_size(self.kv_disk)

    @property
    def vram_limit_bytes(self) -> int | None:
        """The limit in bytes; None for the whole device."""
        return None if self.vram_limit == "auto" else parse_size(self.vram_limit)


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How new conversations sample their answers."""

    temperature: float = _option(0.7, "0 is greedy; higher is more varied", low=0.0, high=100.0)
    top_k: int = _option(40, "keep the k most probable tokens; 0 keeps all", low=0, high=1 << 30)
    top_p: float = _option(0.95, "keep the most probable tokens up to this sum", low=0.0, high=1.0)
    min_p: float = _option(0.05, "drop tokens below this share of the best one", low=0.0, high=1.0)
    repetition_penalty: float = _option(1.0, "1 is off", low=0.01, high=100.0)
    frequency_penalty: float = _option(0.0, "0 is off", low=-100.0, high=100.0)
    presence_penalty: float = _option(0.0, "0 is off", low=-100.0, high=100.0)
    seed: int = _option(-1, "-1 draws a new one for each answer", low=-1, high=(1 << 63) - 1)
    max_tokens: int = _option(0, "most tokens of an answer; 0 is the context's end", low=0, high=1 << 30)
    system_prompt: str = _option("", "what every new conversation begins with")
    chosen: frozenset[str] = field(default=frozenset(), compare=False)
    """Which of these the person has set: no model's recommendation takes their place."""

    def params(self) -> SamplingParams:
        """Return the engine's sampling parameters."""
        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            seed=None if self.seed < 0 else self.seed,
        )

    @property
    def token_limit(self) -> int | None:
        """`max_tokens`, or None for the context's end."""
        return self.max_tokens or None


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which models are found and which one opens."""

    folders: tuple[str, ...] = _option((), "more folders with .gguf files")
    leave_out: tuple[str, ...] = _option(
        (),
        "programs whose model files are not listed",
        choices=("hugging-face", "lm-studio", "ollama", "llama.cpp", "jan", "gpt4all"),
    )
    default: str = _option("builtin", "model of a new tab: builtin, a path, or a file's name")


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. `keys` maps an action's name to its keys, e.g. `new_tab = "ctrl+t"`."""

    general: GeneralSettings = field(default_factory=GeneralSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    models: ModelSettings = field(default_factory=ModelSettings)
    keys: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


class SettingsError(Exception):
    """The settings cannot be saved; names the file and the reason."""


def parse_size(text: str) -> int:
    """Return the bytes of a size such as "2 GiB" or "512MB"; `ValueError` when it is none."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].lower() not in _SIZE_UNITS:
        raise ValueError(f'{text!r} is not a size such as "2 GiB"')
    return int(float(match[1]) * _SIZE_UNITS[match[2].lower()])


def load_settings(path: Path) -> tuple[Settings, list[str]]:
    """Read the settings file; return the settings and one warning per bad entry.

    A missing file gives the defaults; a broken one gives the defaults and a warning.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Settings(), []
    except (OSError, UnicodeDecodeError) as error:
        return Settings(), [f"{path}: cannot be read ({_reason(error)}); default settings are used"]
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return Settings(), [f"{path}: not valid TOML ({error}); default settings are used"]
    warnings: list[str] = []
    return _read_sections(data, path, warnings), warnings


def save_setting(path: Path, section: str, key: str, value: Any) -> None:
    """Write one setting, but no key, atomically; everything else in the file stays as it is now.

    A new file says in comments what else can be set. Raises `SettingsError` when the file is not valid
    TOML or cannot be written.
    """
    try:
        if not path.exists():
            defaults = Settings()
            changed: Any = replace(getattr(defaults, section), **{key: value})
            write_atomically(path, commented(replace(defaults, **{section: changed})))
            return
        text = path.read_text(encoding="utf-8")
        if tomllib.loads(text).get(section, {}).get(key) != value:
            write_atomically(path, edit_toml(text, section, key, value))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, TomlEditError) as error:
        raise SettingsError(f"{path}: not saved ({error}); correct the file first") from error
    except OSError as error:
        raise SettingsError(f"{path}: not saved ({_reason(error)})") from error


def _read_sections(data: dict[str, Any], path: Path, warnings: list[str]) -> Settings:
    sections = {f.name: f for f in fields(Settings)}
    values: dict[str, Any] = {}
    for name, content in data.items():
        if name not in sections:
            warnings.append(_unknown(path, name, sections, "section"))
        elif not isinstance(content, dict):
            warnings.append(f"{path}: {name} must be a section [{name}], not {_kind(content)}; ignored")
        elif name == "keys":
            values[name] = _read_keys(content, path, warnings)
        else:
            values[name] = _read_section(name, content, path, warnings)
    return Settings(**values)


def _read_section(name: str, content: dict[str, Any], path: Path, warnings: list[str]) -> Any:
    default: Any = getattr(Settings(), name)
    options = {f.name: f for f in fields(default) if f.metadata}
    values: dict[str, Any] = {}
    for key, value in content.items():
        if key not in options:
            warnings.append(_unknown(path, key, options, "key", f"{name}."))
            continue
        fallback = getattr(default, key)
        try:
            values[key] = _checked(value, fallback, options[key].metadata)
        except ValueError as error:
            shown = _shown(fallback)
            warnings.append(f"{path}: {name}.{key} must be {error}; the default {shown} is used")
    if isinstance(default, SamplingSettings):
        values["chosen"] = frozenset(values)
    return type(default)(**values)


def _read_keys(content: dict[str, Any], path: Path, warnings: list[str]) -> Mapping[str, str]:
    keys: dict[str, str] = {}
    for action, value in content.items():
        if isinstance(value, str):
            keys[action] = value
        else:
            warnings.append(
                f'{path}: keys.{action} must be keys in quotes such as "ctrl+t", not {_kind(value)}; ignored'
            )
    return MappingProxyType(keys)


def _checked(value: Any, default: Any, limits: Mapping[str, Any]) -> Any:
    """Return the value in the default's type; `ValueError` completes the words "must be"."""
    if isinstance(default, tuple):
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ValueError(f'a list of strings such as ["/a", "/b"], not {_kind(value)}')
        for item in value:
            if "choices" in limits and item not in limits["choices"]:
                raise ValueError(f"some of {', '.join(limits['choices'])}, not {item!r}")
        return tuple(value)
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not type(default):
        raise ValueError(f"{_kind(default)}, not {_kind(value)}")
    if "choices" in limits and value not in limits["choices"]:
        raise ValueError(f"one of {', '.join(limits['choices'])}, not {value!r}")
    if "low" in limits and not limits["low"] <= value <= limits["high"]:
        raise ValueError(f"between {limits['low']} and {limits['high']}, not {value}")
    if limits.get("size") and value != "auto":
        try:
            parse_size(value)
        except ValueError as error:
            raise ValueError(f'auto or a size such as "2 GiB", not {value!r}') from error
    return value


def _unknown(path: Path, name: str, known: Any, what: str, section: str = "") -> str:
    near = get_close_matches(name, list(known), n=1, cutoff=0.5)
    hint = f"; did you mean {section}{near[0]}?" if near else ""
    return f"{path}: unknown {what} {section}{name}{hint}"


def _kind(value: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text in quotes"}
    return names.get(type(value), "a list" if isinstance(value, list) else f"a {type(value).__name__}")


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
