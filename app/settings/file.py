"""The person's settings: a TOML file read into frozen dataclasses.

Every setting is one dataclass field; its type, limits and help stand there and nowhere else. A bad
value or an unknown key becomes a warning that names it, and the default holds for that key alone.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any

from app.settings.actions import key_label
from app.settings.options import checked, kind_of, option, parse_layers, parse_size, shown
from app.settings.paths import write_atomically
from app.settings.servers.endpoints import Endpoint, read_endpoints
from app.settings.servers.tool_servers import ToolServer, read_servers
from engine import SamplingParams, Thinking

DEFAULT_THEME = "ink"
AT_START, IN_NEW_CHATS = "after a restart", "in new chats"


@dataclass(frozen=True, slots=True)
class GeneralSettings:
    """How the app looks and behaves."""

    theme: str = option(
        DEFAULT_THEME,
        "ink, ember, moss (dark), linen, frost (light), beacon, chalk (highest contrast), ansi (the "
        "terminal's own 16 colours), or a theme of your own",
    )
    panel: str = option(
        "auto",
        "live panel: auto shows it from 120 columns",
        choices=("auto", "on", "off"),
    )
    confirm_close: bool = option(True, "ask before closing a tab that is generating")
    restore_tabs: bool = option(True, "open the tabs of the last time", when=AT_START)
    text_width: int = option(
        100,
        "most columns of text; a wider window has it in the middle",
        low=40,
        high=1000,
    )
    enter_sends: bool = option(True, "Enter sends; otherwise it begins a new line")
    other_enter: tuple[str, ...] = option(
        ("ctrl+j", "shift+enter", "alt+enter", "ctrl+enter"),
        "keys that do what Enter does not: begin a new line, or send where enter_sends is false; the first "
        "is the one that is named",
        choices=("ctrl+j", "shift+enter", "alt+enter", "ctrl+enter"),
    )
    attach_limit: str = option(
        "1 MiB", "most text of a file or folder that @ puts into a message, as a size", size=True
    )

    stop_repeats: bool = option(True, "end an answer that repeats itself; a key lets it go on")

    @property
    def other_enter_keys(self) -> tuple[str, ...]:
        """The keys that do what Enter does not: at least one, else no message could have two lines."""
        return self.other_enter or type(self)().other_enter

    @property
    def writing_keys(self) -> tuple[str, str]:
        """What sends a message and what begins a new line in it, as people write it."""
        other = key_label(self.other_enter_keys[0])
        return ("Enter", other) if self.enter_sends else (other, "Enter")

    @property
    def attach_limit_bytes(self) -> int:
        """The limit in bytes; auto is the default's."""
        return parse_size(
            GeneralSettings().attach_limit if self.attach_limit == "auto" else self.attach_limit
        )


@dataclass(frozen=True, slots=True)
class TerminalSettings:
    """How the app treats the terminal that it runs in."""

    glyphs: str = option(
        "auto",
        "lines and signs: ascii draws all with letters a typewriter has; auto does so where the locale is "
        "not UTF-8",
        choices=("auto", "unicode", "ascii"),
    )
    motion: str = option("full", "reduced: nothing blinks, turns or slides", choices=("full", "reduced"))
    notify: str = option(
        "auto",
        "tell of an answer that is done while the terminal is not looked at: how the terminal takes it; auto "
        "goes by the terminal, or rings the bell",
        choices=("auto", "osc9", "osc99", "osc777", "bell", "off"),
    )
    title: bool = option(True, "say in the terminal's title which chat is open and how many are answering")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How the engine runs; a change takes effect at the next start."""

    device: str = option("auto", "auto, cpu, cuda or cuda:N; auto takes all GPUs, each model on one of them")
    kv_budget: str = option(
        "auto",
        'memory for the context of all chats together, on each GPU: auto or a size such as "2 GiB"',
        size=True,
    )
    vram_limit: str = option(
        "auto",
        "most memory of a GPU, weights and all: auto or a size; also tui-chat --vram-limit 12GiB",
        size=True,
    )
    host_layers: str = option(
        "auto",
        "layers of a model that the processor computes beside a GPU, their experts alone where they have "
        "some: auto, as few as the GPU's memory makes needful; never; or how many of each model",
        layers=True,
    )
    host_kv: str = option(
        "auto",
        "host memory, of each model, for contexts that a full GPU had to put aside: auto or a size; "
        '"0 GiB" for none',
        size=True,
    )
    kv_disk: str = option(
        "auto",
        "disk space for contexts of chats, so that they need not be read again after a restart: auto (a "
        'tenth of what is free, at most 8 GiB) or a size; "0 GiB" for none',
        size=True,
    )
    kv_dtype: str = option(
        "auto",
        "type of the context in memory; auto: q8_0, half of float16, where a wider type leaves too little "
        "room, and the panel says so; a type that is named is kept",
        choices=("auto", "float32", "bfloat16", "float16", "q8_0"),
    )
    weight_dtype: str = option(
        "auto", "type that weights are computed in", choices=("auto", "float32", "bfloat16")
    )
    threads: int = option(0, "processor threads of the engine; 0 chooses", low=0, high=1024)
    tick_factor: float = option(
        0.0,
        "how many times an idle tick one lasts in the mean while a long prompt is read: less leaves other "
        "answers more of their pace, more reads sooner; 0 chooses 1.8, which leaves them half of it",
        low=1.0,
        high=100.0,
        or_zero=True,
    )
    idle_unload_minutes: int = option(
        0,
        "put models aside that nobody asks for so long; 0 never: whoever needs their memory gets it anyway",
        low=0,
        high=10_000,
    )
    speculation: str = option(
        "auto",
        "guess tokens from the text so far where that is quicker; the answers are the same",
        choices=("auto", "off"),
    )
    batch_independent: bool = option(
        False, "on a GPU: an answer's bits do not depend on what else runs; several times slower"
    )

    @property
    def kv_budget_bytes(self) -> int | None:
        """The KV budget in bytes; None lets the engine choose."""
        return None if self.kv_budget == "auto" else parse_size(self.kv_budget)

    @property
    def host_layers_wanted(self) -> str | int:
        """A number, or the word."""
        return parse_layers(self.host_layers)

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

    temperature: float = option(0.7, "0 is greedy; higher is more varied", low=0.0, high=100.0)
    top_k: int = option(40, "keep the k most probable tokens; 0 keeps all", low=0, high=1 << 30)
    top_p: float = option(0.95, "keep the most probable tokens up to this sum", low=0.0, high=1.0)
    min_p: float = option(0.05, "drop tokens below this share of the best one", low=0.0, high=1.0)
    repetition_penalty: float = option(1.0, "1 is off", low=0.01, high=100.0)
    frequency_penalty: float = option(0.0, "0 is off", low=-100.0, high=100.0)
    presence_penalty: float = option(0.0, "0 is off", low=-100.0, high=100.0)
    seed: int = option(-1, "-1 draws a new one for each answer", low=-1, high=(1 << 63) - 1)
    max_tokens: int = option(0, "most tokens of an answer; 0 is the context's end", low=0, high=1 << 30)
    thinking: str = option(
        "auto",
        "how much models think before they answer, where their chat template has words for it: auto, on, "
        'off, low, medium, high, a budget in tokens, or both: "high 2048"',
        thinking=True,
    )
    system_prompt: str = option("", "what every new conversation begins with")
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
    def think(self) -> Thinking:
        """`thinking` as the engine takes it."""
        return Thinking.parse(self.thinking)

    @property
    def token_limit(self) -> int | None:
        """`max_tokens`, or None for the context's end."""
        return self.max_tokens or None


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which models are found and which one opens."""

    folders: tuple[str, ...] = option((), "more folders with .gguf files")
    leave_out: tuple[str, ...] = option(
        (),
        "programs whose model files are not listed",
        choices=("hugging-face", "lm-studio", "ollama", "llama.cpp", "jan", "gpt4all"),
    )
    default: str = option("builtin", "model of a new tab: builtin, a path, a file's name, or ENDPOINT/MODEL")


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings.

    `keys` maps an action's name to its keys, e.g. `new_tab = "ctrl+t"`; `tools` has servers by name.
    """

    general: GeneralSettings = field(default_factory=GeneralSettings)
    terminal: TerminalSettings = field(default_factory=TerminalSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    models: ModelSettings = field(default_factory=ModelSettings)
    tools: Mapping[str, ToolServer] = field(default_factory=lambda: MappingProxyType({}))
    endpoints: Mapping[str, Endpoint] = field(default_factory=lambda: MappingProxyType({}))
    """Servers that answer chats too, by their names."""
    keys: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


class SettingsError(Exception):
    """The settings cannot be saved; names the file and the reason."""


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


def with_value(settings: Settings, section: str, key: str, value: Any) -> Settings:
    """Return the settings with another value; None stands for the default."""
    if section == "keys":
        keys = {name: text for name, text in settings.keys.items() if name != key}
        return replace(settings, keys=MappingProxyType(keys | ({} if value is None else {key: value})))
    before: Any = getattr(settings, section)
    values = {key: getattr(type(before)(), key) if value is None else value}
    if isinstance(before, SamplingSettings):
        values["chosen"] = before.chosen - {key} if value is None else before.chosen | {key}
    return replace(settings, **{section: replace(before, **values)})


def save_setting(path: Path, section: str, key: str, value: Any) -> None:
    """Write one setting atomically; everything else in the file stays as it is now.

    None takes the setting out: its default holds. A new file says in comments what else can be set. Raises
    `SettingsError` when the file is not valid TOML or cannot be written.
    """
    from app.settings.reference import commented
    from app.settings.toml_text import TomlEditError, edit_toml

    try:
        if path.exists():
            text = path.read_text(encoding="utf-8")
        elif value is None:
            return
        else:
            known = section != "keys"
            text = commented(with_value(Settings(), section, key, value) if known else Settings())
            write_atomically(path, text)
        held = tomllib.loads(text).get(section, {})
        if held.get(key) != (list(value) if isinstance(value, tuple) else value):
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
            warnings.append(f"{path}: {_unknown(name, sections, 'section')}")
        elif not isinstance(content, dict):
            warnings.append(f"{path}: {name} must be a section [{name}], not {kind_of(content)}; ignored")
        elif name == "keys":
            values[name] = _read_keys(content, path, warnings)
        elif name == "tools":
            values[name] = read_servers(
                content,
                lambda problem: warnings.append(f"{path}: {problem}"),
                lambda key, known, section: _unknown(key, known, "key", section),
            )
        elif name == "endpoints":
            values[name] = read_endpoints(content, f"{path}: endpoints", warnings)
        else:
            values[name] = _read_section(name, content, path, warnings)
    return Settings(**values)


def _read_section(name: str, content: dict[str, Any], path: Path, warnings: list[str]) -> Any:
    default: Any = getattr(Settings(), name)
    options = {f.name: f for f in fields(default) if f.metadata}
    values: dict[str, Any] = {}
    for key, value in content.items():
        if key not in options:
            warnings.append(f"{path}: {_unknown(key, options, 'key', f'{name}.')}")
            continue
        fallback = getattr(default, key)
        try:
            values[key] = checked(value, fallback, options[key].metadata)
        except ValueError as error:
            warnings.append(f"{path}: {name}.{key} must be {error}; the default {shown(fallback)} is used")
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
                f'{path}: keys.{action} must be keys in quotes such as "ctrl+t", not '
                f"{kind_of(value)}; ignored"
            )
    return MappingProxyType(keys)


def _unknown(name: str, known: Any, what: str, section: str = "") -> str:
    near = get_close_matches(name, list(known), n=1, cutoff=0.5)
    hint = f"; did you mean {section}{near[0]}?" if near else ""
    return f"unknown {what} {section}{name}{hint}"


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
