"""What is read from disk is data: the code has no way to load anything else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from a3c.run.rundir import REPOSITORY

LOADERS = {
    *("pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml"),
    *("eval", "exec", "allow_pickle", "fromfile", "memmap"),
    *("import_meta_graph", "import_graph_def", "saved_model", "load_model", "py_func"),
    *("tarfile", "zipfile", "unpack_archive", "extractall"),
}


def names_in(file: Path) -> Iterator[str]:
    """Every name that a module imports, calls, looks up or gives as a keyword."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (part for alias in node.names for part in alias.name.split("."))
            yield from (getattr(node, "module", None) or "").split(".")


def test_nothing_loads_code_or_archives_from_files() -> None:
    files = [*REPOSITORY.glob("*.py"), *(REPOSITORY / "a3c").rglob("*.py")]
    assert len(files) > 50
    found = {(str(f.relative_to(REPOSITORY)), n) for f in files for n in names_in(f)}
    # Both take the agent's own graph, to export it.
    own = {("a3c/learn/agent.py", "import_graph_def"), ("a3c/play/loaded.py", "saved_model")}
    assert sorted((file, name) for file, name in found - own if name in LOADERS) == []
