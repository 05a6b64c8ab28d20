"""The look of the report page: one HTML file that loads nothing from anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

MARKER = '<meta name="generator" content="tinyllm report">'
"""Stands in the head of each report, so that a later one may replace it and nothing else is overwritten."""

_CSS = """
:root { color-scheme: light; --ink: #263238; --soft: #607d8b; --line: #e3e8eb; --warn: #fff8e1; --edge: #ffca28 }
* { box-sizing: border-box }
body { margin: 0; background: #f5f7f8; color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif }
main { max-width: 1160px; margin: 0 auto; padding: 32px 20px 64px }
h1 { margin: 0; font-size: 26px } h2 { margin: 36px 0 10px; font-size: 18px }
.lead, .note { margin: 4px 0 0; color: var(--soft) } .note { font-size: 13px }
.card { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px; overflow-x: auto }
.card svg { display: block; width: 100%; height: auto }
.warnings { margin: 20px 0 0; padding: 10px 16px 10px 34px; background: var(--warn);
  border-left: 4px solid var(--edge); border-radius: 6px }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums }
th, td { padding: 5px 8px; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th { color: var(--soft); font-weight: 600; vertical-align: bottom } tr:last-child td { border-bottom: 0 }
th:first-child, td:first-child, .facts th, .facts td { text-align: left }
.facts td { white-space: normal; overflow-wrap: anywhere; vertical-align: top }
.policy { color: var(--soft); font-weight: 400 }
.swatch { display: inline-block; width: 11px; height: 11px; margin-right: 7px; border-radius: 3px }
@media print { body { background: #fff } .card { break-inside: avoid } }
"""


def page(title: str, lead: str, body: Iterable[str]) -> str:
    """The whole document. `title` and `lead` are plain text, `body` is HTML."""
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            MARKER,
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n<main>",
            f'<h1>{escape(title)}</h1>\n<p class="lead">{escape(lead)}</p>',
            *body,
            "</main>\n</body>\n</html>\n",
        ]
    )


def section(title: str, content: str, note: str = "") -> str:
    """A heading, a line that says how to read it (plain text), and a card with `content` (HTML)."""
    line = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<h2>{escape(title)}</h2>\n<div class="card">{content}{line}</div>'


def warnings(lines: Sequence[tuple[str, str]]) -> str:
    """A box with `(what, of which runs)` a line; nothing where there is none."""
    if not lines:
        return ""
    items = "".join(f"<li><b>{escape(which)}</b>: {escape(text)}</li>" for text, which in lines)
    return f'<ul class="warnings" aria-label="warnings">{items}</ul>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], css_class: str = "") -> str:
    """A table of HTML cells."""
    header = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>\n" for row in rows)
    attribute = f' class="{css_class}"' if css_class else ""
    return f"<table{attribute}>\n<thead><tr>{header}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>"


def run_label(color: str, name: str, policy: str) -> str:
    """A run's name behind a square of its colour, and its policy where the name does not say it."""
    more = f' <span class="policy">{escape(policy)}</span>' if policy != name else ""
    return f'<span class="swatch" style="background:{escape(color)}"></span>{escape(name)}{more}'
