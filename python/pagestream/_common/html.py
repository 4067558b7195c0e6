"""HTML tables for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def page(title: str, *parts: str) -> str:
    """Returns HTML parts under a plain-text title."""
    return f"<div><strong>{escape(title)}</strong>{''.join(parts)}</div>"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    """Returns a table of texts with a line below it."""
    head = "".join(f"<th>{escape(text)}</th>" for text in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows)
    below = f"<p>{escape(note)}</p>" if note else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"
