import pytest

from app.settings.chat_colors import NAMES
from app.settings.file import DEFAULT_THEME
from app.settings.themes import (
    COLOR_ROLES,
    VARIABLE_DEFAULTS,
    ThemeFileError,
    load_themes,
    parse_theme,
    variable_defaults,
)
from app.window.themes import textual_theme

THEMES, WARNINGS = load_themes()
HEX_THEMES = [theme for theme in THEMES if not theme.ansi]
GOOD = (
    'name = "mine"\n[colors]\n'
    + "\n".join(f'{role} = "#123456"' for role in COLOR_ROLES)
    + '\n[code]\nstyle = "vim"\n'
)


def luminance(color):
    channels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_package_has_eight_themes_dark_and_light():
    assert WARNINGS == []
    assert len(THEMES) == 8
    assert [theme.name for theme in THEMES if theme.ansi] == ["ansi"]
    assert {theme.dark for theme in THEMES} == {True, False}
    assert len({tuple(theme.colors.values()) for theme in THEMES}) == len(THEMES)
    assert DEFAULT_THEME in {theme.name for theme in THEMES}


@pytest.mark.parametrize("theme", HEX_THEMES, ids=lambda theme: theme.name)
def test_text_is_readable_on_every_ground(theme):
    variables = theme.resolved_variables()
    texts = {role: theme.colors[role] for role in COLOR_ROLES[:7]}
    texts |= {key: value for key, value in variables.items() if key.startswith("tab-")}
    for ground in ("background", "surface", "panel"):
        for name, color in texts.items():
            assert contrast(color, theme.colors[ground]) >= 4.5, (theme.name, name, ground)
    cursor = contrast(variables["block-cursor-foreground"], variables["block-cursor-background"])
    assert cursor >= 4.5
    assert contrast(theme.colors["foreground"], theme.colors["background"]) >= 7


@pytest.mark.parametrize("name", ["beacon", "chalk"])
def test_themes_of_high_contrast_have_it(name):
    theme = next(theme for theme in THEMES if theme.name == name)
    assert contrast(theme.colors["foreground"], theme.colors["background"]) == pytest.approx(21)
    for role in COLOR_ROLES[:6]:
        for ground in ("background", "surface", "panel"):
            assert contrast(theme.colors[role], theme.colors[ground]) >= 7, (role, ground)


@pytest.mark.parametrize("theme", HEX_THEMES, ids=lambda theme: theme.name)
def test_chats_can_be_told_apart(theme):
    variables = theme.resolved_variables()
    colors = [variables[name] for name in NAMES]
    channels = [[int(color[at : at + 2], 16) for at in (1, 3, 5)] for color in colors]
    for number, color in enumerate(colors):
        assert contrast(color, theme.colors["background"]) >= 4.4, (theme.name, color)
        for other in channels[:number]:
            assert sum(abs(a - b) for a, b in zip(channels[number], other, strict=True)) >= 40


def test_chats_have_colours_where_the_terminal_has_its_own():
    assert variable_defaults({"primary": "ansi_blue"})["chat-1"].startswith("#")


@pytest.mark.parametrize("file", THEMES, ids=lambda theme: theme.name)
def test_textual_takes_every_theme(file):
    theme = textual_theme(file)
    generated = theme.to_color_system().generate()
    assert generated["background"].lower() == theme.background
    for name in [*VARIABLE_DEFAULTS, *NAMES]:
        assert theme.variables[name].startswith("ansi_" if file.ansi else "#")
    assert theme.variables["code-style"]


def test_own_theme_is_added_and_replaces_a_packaged_one(tmp_path):
    (tmp_path / "a.toml").write_text(GOOD)
    (tmp_path / "b.toml").write_text(GOOD.replace("mine", "ink"))
    themes, warnings = load_themes(tmp_path)
    assert warnings == []
    by_name = {theme.name: theme for theme in themes}
    assert len(themes) == len(THEMES) + 1
    assert by_name["ink"].colors["primary"] == "#123456"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("name = ", ["not valid TOML"]),
        ("[colors]\n", ["name is missing"]),
        (GOOD.replace("accent", "acent"), ["colors.acent", "colors.accent"]),
        (GOOD.replace('accent = "#123456"', ""), ["colors.accent is missing"]),
        (GOOD.replace('accent = "#123456"', 'accent = "red"'), ["colors.accent", "'red'"]),
        (GOOD.replace('accent = "#123456"', "accent = 3"), ["colors.accent", "3"]),
        (GOOD.replace("vim", "vimm"), ["code.style", "'vimm'", "'vim'"]),
        (GOOD.replace('"mine"', '"My Theme"'), ["name", "My Theme"]),
        ('dark = "no"\n' + GOOD, ["dark", "true or false"]),
        ("ansi = true\n" + GOOD, ["colors.primary", "ansi_blue", "#123456"]),
        (GOOD + '[variables]\nsparkline = "blue"\n', ["variables.sparkline", "blue"]),
        (GOOD + '[variables]\nborder = "}; * { display: none"\n', ["variables.border"]),
    ],
)
def test_broken_file_is_named_and_skipped(tmp_path, text, parts):
    path = tmp_path / "broken.toml"
    path.write_text(text)
    themes, warnings = load_themes(tmp_path)
    assert len(themes) == len(THEMES)
    assert len(warnings) == 1
    for part in [str(path), *parts, "skipped"]:
        assert part in warnings[0]
    with pytest.raises(ThemeFileError):
        parse_theme(text, "x")


def test_foreign_themes_get_the_apps_variables():
    found = variable_defaults({"success": "#00ff00", "foreground": "#ffffff"})
    assert set(found) == {*VARIABLE_DEFAULTS, *NAMES, "code-style"}
    assert found["tab-streaming"] == "#00ff00"
    assert found["tab-error"] == "#ffffff"
