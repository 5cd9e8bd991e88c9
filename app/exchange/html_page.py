"""A chat as one HTML page that needs nothing else: no script, and no picture or font from elsewhere."""

from html import escape

from markdown_it import MarkdownIt

from app.chat.conversation import MessageNode, Role
from app.exchange.kept import KeptChat
from app.exchange.markdown_text import author, heading_line

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.6 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
header p, .author { color: #777; }
section { margin: 1.5rem 0; }
.user { border-left: 3px solid #4a90d9; padding-left: 1rem; }
.plain { white-space: pre-wrap; overflow-wrap: anywhere; }
.author { font-size: .85rem; font-weight: 600; }
pre { overflow-x: auto; padding: .8rem; background: #8881; border-radius: .4rem; }
code { font-family: ui-monospace, monospace; font-size: .9em; }
table { border-collapse: collapse; } td, th { border: 1px solid #8886; padding: .2rem .6rem; }
details { color: #777; }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def html_page(kept: KeptChat) -> str:
    """Return a chat's page. Answers are laid out by their Markdown; no HTML in any text is passed on."""
    chat = kept.conversation
    title = escape(" ".join(chat.title.split()))
    system = chat.system_prompt.strip()
    parts = [f'<section class="plain">{escape(system)}</section>'] if system else []
    parts += [_section(node) for node in chat.path()]
    return (
        f'<!doctype html>\n<html><head><meta charset="utf-8"><title>{title}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{_STYLE}</style></head><body>\n"
        f"<header><h1>{title}</h1><p>{escape(heading_line(kept))}</p></header>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _section(node: MessageNode) -> str:
    answer = node.role is Role.ASSISTANT
    # No HTML, no link to a script, and no picture, which would be fetched from elsewhere.
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    body = markdown.render(node.text) if answer else f'<div class="plain">{escape(node.text)}</div>'
    for call in node.calls if node.role is Role.TOOL else ():
        body = f"<details><summary>Result</summary><pre>{escape(call.text)}</pre>{body}</details>"
    thoughts = ""
    if node.reasoning.strip():
        inside = escape(node.reasoning.strip())
        thoughts = f'<details><summary>Reasoning</summary><div class="plain">{inside}</div></details>'
    return (
        f'<section class="{escape(str(node.role))}"><div class="author">{escape(author(node))}</div>'
        f"{thoughts}{body}</section>"
    )
