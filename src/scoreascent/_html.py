"""Pieces of HTML: escaped text, tables, what is folded. Styles are in the tags."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

CELL = "padding:0.1em 0.8em;text-align:"


def tag(name: str, inside: str, style: str = "", **attributes: str) -> str:
    """Return an element around HTML.

    >>> tag("p", escape("a < b"), title="a & b")
    '<p title="a &amp; b">a &lt; b</p>'
    """
    given = {**({"style": style} if style else {}), **attributes}
    text = "".join(f' {k.rstrip("_")}="{escape(v)}"' for k, v in given.items())
    return f"<{name}{text}>{inside}</{name}>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """Return a table of texts: numbers stand on the right, the first columns, of words, do not.

    >>> table([], [["a", "1"]])
    '<table><tbody><tr><td style="...left">a</td><td style="...right">1</td></tr></tbody></table>'
    """

    def line(kind: str, cells: Sequence[str]) -> str:
        sides = ["left" if i < words else "right" for i in range(len(cells))]
        inside = [tag(kind, escape(x), CELL + side) for x, side in zip(cells, sides)]
        return tag("tr", "".join(inside))

    top = tag("thead", line("th", head)) if head else ""
    return tag("table", top + tag("tbody", "".join(line("td", row) for row in rows)))


def details(summary: str, inside: str) -> str:
    """Return what is folded under a line of text."""
    return tag("details", tag("summary", escape(summary)) + inside)


def lines(texts: Iterable[str]) -> str:
    """Return a list of texts, in their order."""
    return tag("ol", "".join(tag("li", escape(x)) for x in texts))
