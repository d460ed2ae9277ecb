"""Draw docs/pictures/architecture.png: `.venv/bin/python docs/architecture_picture.py`.

Folders and their questions come from the table in docs/architecture.md, their imports from the
code. tests/test_import_order.py checks that the two files of each message import each other.
"""

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.append(str(REPOSITORY))

from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.patches import FancyBboxPatch  # noqa: E402

from a3c.plot import pictures  # noqa: E402
from a3c.plot.pictures import COLOURS, FAINT, GREY, GRID, INK  # noqa: E402

PAGE = REPOSITORY / "docs" / "architecture.md"
QUESTIONS = dict(re.findall(r"(?m)^\| `(\w+)/?` \| \**(.+?)\** \|", PAGE.read_text("utf-8")))
ORDER = list(QUESTIONS)  # the folders of a3c/, top to bottom

THERE = (  # from a file, to a file: what travels
    ("learn/rollout", "learn/learner", "T steps of B games"),
    ("learn/learner", "learn/returns", "rewards, values"),
    ("learn/learner", "learn/agent", "a minibatch"),
    ("learn/agent", "learn/losses", "policy, values"),
    ("learn/learner", "server/store", "a push: the gradient, env steps to count"),
    ("server/store", "server/exchange", "its part for each ps"),
    ("server/exchange", "server/optimizers", "the gradients' mean"),
)
BACK = (
    ("server/optimizers", "server/exchange", "new weights"),
    ("server/exchange", "server/store", "each ps's reply"),
    ("server/store", "learn/learner", "the reply: newest weights, global_step"),
    ("learn/learner", "learn/agent", "weights to load"),
    ("learn/learner", "learn/rollout", "play on"),
)
BOXES = (  # of processes: x, y, width and height in inches, name, what it does, colour
    (12.45, 13.75, 4.9, 0.75, "launch_cluster.py", "starts keepers; shows and ends the run", 6),
    (12.45, 12.35, 4.9, 0.75, "keepers", "one per process: start, watch and restart it", 1),
    (10.92, 10.5, 1.3, 1.3, "worker-0", "the chief: saves\nand reports; a\nfork tests goals", 0),
    (12.38, 10.5, 1.3, 1.3, "worker-1 … N", "play and learn\n(worker.py)", 0),
    (14.2, 10.5, 1.4, 1.3, "evaluator", "plays checkpoints\n(evaluate.py)", 2),
    (11.52, 8.35, 3.04, 0.8, "ps", "weights, optimizer, global_step", 3),
    (14.2, 8.35, 1.4, 0.8, "run directory", "all write to it", 4),
)
ARROWS = (  # between processes: x, where it starts and ends, style, label
    (12.45, 13.37, 12.73, "-|>", ""),
    *((x, 11.97, 11.15, "-|>", "") for x in (10.92, 12.38, 14.2)),
    (10.1, 11.97, 8.75, "-|>", ""),
    *((x, 9.85, 8.75, "<|-|>", "pushes, replies") for x in (10.92, 12.38)),
    (14.2, 8.75, 9.85, "-|>", "checkpoints"),
)
ARROW: dict[str, Any] = {"arrowstyle": "-|>", "color": FAINT, "shrinkA": 0, "shrinkB": 0}
MIDDLE: dict[str, Any] = {"ha": "center", "va": "center"}


def imports(path: Path) -> Iterator[str]:
    """The dotted names that a file imports anywhere in it, as `a3c.run.rows.latest`."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            above = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            yield from (above + alias.name for alias in node.names)


def box(axes: Axes, place: Sequence[float], name: str, note: str, colour: int) -> None:
    (x, y, width, height), rounded = place, "round,pad=0,rounding_size=0.07"
    shape = FancyBboxPatch((x - width / 2, y - height / 2), width, height, boxstyle=rounded)
    shape.set(facecolor=f"{COLOURS[colour]}1c", edgecolor=COLOURS[colour], linewidth=1.4)
    axes.add_patch(shape)
    up = 0.09 * (note.count("\n") + 1) if note else 0.0
    axes.text(x, y + up, name, size=11.5, weight="bold", color=INK, **MIDDLE)
    axes.text(x, y - 0.13, note, size=9.5, color=FAINT, linespacing=1.25, **MIDDLE)


def draw_folders(axes: Axes) -> None:
    for i, name in enumerate(["scripts", *ORDER]):
        paths = (REPOSITORY / "a3c" / name if i else REPOSITORY).glob("*.py")
        y, question = 13.75 - 0.4 * i, QUESTIONS.get(name, "What do people run and edit?")
        box(axes, (0.95, y, 1.3, 0.31), name, "", 5 if name in ORDER else 6)
        axes.text(1.75, y, question, size=11.5, color=INK, va="center")
        axes.plot((5.3, 9.4), (y - 0.2, y - 0.2), color=GRID, linewidth=0.6)
        dotted = {tuple(each.split(".")[:2]) for path in paths for each in imports(path)}
        for j, other in enumerate(ORDER):
            x, is_there = 5.45 + 0.27 * j, ("a3c", other) in dotted and other != name
            axes.plot(x, y, "o", color=COLOURS[0] if is_there else GRID, ms=8 if is_there else 2)
            if i == 0:
                axes.text(x - 0.04, 14.02, other, size=10, color=FAINT, rotation=60, va="bottom")


def draw_rollout(axes: Axes) -> None:
    files = dict.fromkeys(name for start, end, _ in THERE for name in (start, end))
    lanes = {name: 1.1 + 1.83 * i for i, name in enumerate(files)}
    for name, x in lanes.items():
        folder, file = name.split("/")
        box(axes, (x, 6.25, 1.6, 0.62), f"{file}.py", f"a3c/{folder}/", 3 * (folder == "server"))
        axes.plot((x, x), (5.94, 0.25), color=GREY, linewidth=1, linestyle=":", zorder=0)
    for i, (start, end, what) in enumerate((*THERE, *BACK)):
        y, left, right = 5.55 - 0.43 * i, lanes[start], lanes[end]
        look = ARROW | {"color": COLOURS[i >= len(THERE)]}
        axes.annotate("", (right, y), (left, y), arrowprops=look)
        axes.text((left + right) / 2, y + 0.14, f"{i + 1}  {what}", size=10, color=INK, **MIDDLE)


def main() -> None:
    figure = Figure((15, 15), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, 15), ylim=(0, 15))
    axes.axis("off")
    look: dict[str, Any] = {"size": 16, "weight": "bold", "color": INK, "va": "center"}
    axes.text(0.3, 14.4, "Folders of a3c/ and what they import", **look)
    axes.text(10.0, 14.4, "Processes", **look)
    axes.text(0.3, 6.85, "The path of a rollout: there (blue) and back (orange)", **look)
    for *place, name, note, colour in BOXES:
        box(axes, place, name, note, colour)
    for x, start, end, style, label in ARROWS:
        axes.annotate("", (x, end), (x, start), arrowprops=ARROW | {"arrowstyle": style})
        axes.text(x, (start + end) / 2, label, size=10, backgroundcolor="white", **MIDDLE)
    draw_folders(axes)
    draw_rollout(axes)
    pictures.save(figure, REPOSITORY / "docs" / "pictures" / "architecture.png", dpi=100)


if __name__ == "__main__":
    main()
