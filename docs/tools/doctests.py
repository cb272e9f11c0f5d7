"""Doctests in docstrings become fenced blocks: without that, Markdown reads `>>>` as quotations."""

from __future__ import annotations

import re
from typing import Any

import griffe

PROMPT = re.compile(r"^ *>>>")


def fenced(text: str) -> str:
    r"""A docstring with a fence around every doctest, under the word Example.

    >>> print(fenced("Add one.\n\n>>> add(1)\n2"))
    Add one.
    <BLANKLINE>
    **Example**
    <BLANKLINE>
    ```pycon
    >>> add(1)
    2
    ```
    """
    out: list[str] = []
    inside = False
    for line in [*text.splitlines(), ""]:
        if not inside and PROMPT.match(line):
            if not any(piece == "**Example**" for piece in out):
                out += ["**Example**", ""]
            out.append("```pycon")
            inside = True
        elif inside and not line.strip():
            out.append("```")
            inside = False
        out.append(line)
    return "\n".join(out).rstrip()


class Doctests(griffe.Extension):
    """Fences the doctests of all that has a docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called once a function, a class, a module or an attribute is read."""
        if obj.docstring is not None and ">>>" in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)
