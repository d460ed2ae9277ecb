"""Imports go down the list of folders in docs/architecture.md, and light programs stay light."""

import os
import re
import sys
from pathlib import Path

import pytest

from docs.architecture_picture import BACK, ORDER, REPOSITORY, THERE, imports
from tests.fake_runs import live_run
from tests.runs import call

# Programs that the plan of a run starts, by name: there is no import, so no cycle.
PROGRAMS = {"a3c.launch.tensorboard_server", "a3c.hosts.near_end"}

# What light programs must not import, in a folder with a run.
LIGHT = [
    ("tensorflow numpy rich libtmux psutil gymnasium logging", "import a3c.keeper.keeper"),
    (
        "tensorflow numpy rich psutil",
        "from a3c.process import process_records as p\n"
        "assert p.identify(1) and p.read_records(p.Path('runs/run'))",
    ),
    (
        "tensorflow numpy rich libtmux psutil gymnasium",
        "import launch_cluster\n"
        "for line in ('python launch_cluster.py --preset ', 'python launch_cluster.py stop '):\n"
        "    launch_cluster.complete(line, str(len(line)))",
    ),
    (
        "tensorflow rich libtmux gymnasium matplotlib",
        "import launch_cluster; launch_cluster.main(['status', 'runs/run', '--json'])",
    ),
    (
        "tensorflow",
        "import a3c.watch.dashboard, launch_cluster, plot\n"
        "launch_cluster.main(['--env-id', 'Nope-v0'])\n"
        "assert plot.main(['runs/run']) == 0\n"
        "import envs, examples.memory, a3c.env.seeding, a3c.cluster.plan, a3c.run.checkpoint\n"
        "import a3c.run.metrics, a3c.process.heartbeat, a3c.server.layout",
    ),
]


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
        # The files beside the folders are names for users: they may import all, and nobody them.
        below = ORDER[ORDER.index(mine) :] if mine in ORDER else ORDER
        started = re.findall(r'"-m", "(a3c\S+)"', path.read_text())
        for name in (*imports(path), *({*started} - PROGRAMS)):
            first, second = f"{name}.".split(".")[:2]
            if first in scripts or (first == "a3c" and second not in below):
                wrong.append(f"{inside} imports {name}")
    assert wrong == []  # `a3c.load` loads the user's files by their paths


def test_each_message_in_the_picture_is_between_files_that_import_each_other() -> None:
    for start, end, what in (*THERE, *BACK):
        files = f"a3c/{start}.py", f"a3c/{end}.py"
        known = " ".join(name for file in files for name in imports(REPOSITORY / file))
        assert any(re.search(rf"\b{file[:-3].replace('/', '.')}\b", known) for file in files), what
    assert max(len(THERE), len(BACK)) <= 8


@pytest.mark.parametrize(("heavy", "code"), LIGHT)
def test_light_programs_import_nothing_heavy(heavy: str, code: str, tmp_path: Path) -> None:
    live_run(tmp_path / "runs" / "run", workers=2)
    check = f"found = {set(heavy.split())} & sys.modules.keys(); assert not found, found"
    here = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(REPOSITORY)}}
    call(sys.executable, "-c", f"import sys\n{code}\n{check}", **here, check=True)


def test_the_fixed_name_of_returns_stays() -> None:
    from a3c.learn import returns as moved
    from a3c.returns import gae

    assert gae is moved.gae
