"""docs/errors.md against the code: every message on it is one that the code can print, and every message of some kinds of errors is on it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "errors.md").read_text(encoding="utf-8")
ALL_OF = {"RunFolderError", "CheckpointError", "ClusterError", "UploadError", "EnvFault"}
"""Errors whose every message has to be on the page."""


def text_of(node: ast.expr) -> str:
    """A literal text of the code, ``…`` for what is put in when it runs."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return text_of(node.left) + text_of(node.right) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) else "…"


@cache
def code() -> tuple[set[str], list[tuple[str, str]]]:
    """All literal texts of the packages, and (place, text) of what the errors of `ALL_OF` are raised with."""
    texts, raised = set(), []
    for package in ("envs", "trainers", "raytrain"):
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant | ast.JoinedStr):
                    texts.add(text_of(node))
                elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                    called = node.exc.func
                    name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
                    if name in ALL_OF:
                        raised.append((f"{path.relative_to(REPOSITORY)}:{node.lineno}", text_of(node.exc.args[0])))
    return {text for text in texts if len(text) > 10}, raised


def messages() -> list[str]:
    """Those of the page, without the table of what is seen in training."""
    tables = PAGE.partition("## While it trains")[0]
    return re.findall(r"^\| `([^`]+)` \|", tables, re.MULTILINE)


def says(text: str, message: str) -> bool:
    """Whether a text of the code begins as the message does and has all of its words in their order; ``…`` stands for anything."""
    at = 0
    for number, part in enumerate(message.rstrip("….").split("…")):
        found = text.find(part, at)
        if found < 0 or (number == 0 and part and found > 0):
            return False
        at = found + len(part)
    return True


def test_every_message_of_the_page_is_one_of_the_code():
    assert len(messages()) > 60
    assert [message for message in messages() if not any(says(text, message) for text in code()[0])] == []


def test_every_message_of_these_errors_is_on_the_page():
    raised = [(place, text) for place, text in code()[1] if re.search(r"\w", text.replace("…", ""))]
    assert len(raised) > 60
    assert [(place, text) for place, text in raised if not any(says(text, message) for message in messages())] == []
