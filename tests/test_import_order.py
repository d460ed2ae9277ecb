"""Imports go down the list of folders in docs/architecture.md, never up."""

from __future__ import annotations

import ast
import re

from a3c.run.rundir import REPOSITORY

PAGE = (REPOSITORY / "docs" / "architecture.md").read_text()
ORDER = re.findall(r"^\| `(\w+)/?` \|", PAGE, re.MULTILINE)  # the page's table, top to bottom


def test_the_page_lists_every_folder_of_a3c() -> None:
    folders = {path.parent.name for path in (REPOSITORY / "a3c").glob("*/__init__.py")}
    assert set(ORDER) == folders | {"errors"}
    assert len(ORDER) == len(set(ORDER))


def test_nothing_imports_from_a_folder_above_its_own_or_from_the_scripts() -> None:
    scripts = {path.stem for path in REPOSITORY.glob("*.py")} | {"benchmarks", "tests"}
    wrong = []
    for path in sorted((REPOSITORY / "a3c").rglob("*.py")):
        inside = path.relative_to(REPOSITORY / "a3c")
        mine = inside.parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                first, *rest = name.split(".")
                up = first == "a3c" and rest and mine in ORDER
                if first in scripts or (up and ORDER.index(rest[0]) < ORDER.index(mine)):
                    wrong.append(f"{inside} imports {name}")
    assert wrong == []  # `a3c.load` loads the user's files by their paths


def test_the_fixed_name_of_returns_stays() -> None:
    from a3c.learn import returns as moved
    from a3c.returns import gae

    assert gae is moved.gae
