"""The theme files as Textual's themes."""

from pathlib import Path

from textual.theme import Theme

from app.settings.themes import ThemeFile, load_themes


def textual_themes(user_folder: Path | None = None) -> tuple[list[Theme], list[str]]:
    """Read all theme files as themes to register with Textual, and the warnings."""
    themes, warnings = load_themes(user_folder)
    return [_textual_theme(theme) for theme in themes], warnings


def _textual_theme(theme: ThemeFile) -> Theme:
    return Theme(
        name=theme.name,
        dark=theme.dark,
        variables=theme.resolved_variables(),
        text_alpha=1.0,
        **theme.colors,  # type: ignore[arg-type]
    )
