"""Fill docs/results.md from the index and the curves of `benchmarks.results`, and draw the curves.

python -m benchmarks.results_page
"""

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.results_page")

import argparse
import itertools
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from a3c.plot import pictures
from a3c.plot.curves import Series, across_seeds, series
from a3c.plot.pictures import COLOURS, FAINT
from a3c.process.console import format_mean
from a3c.run.rundir import REPOSITORY
from benchmarks import machine
from benchmarks.results import WHOLE

PAGE = REPOSITORY / "docs" / "results.md"
PICTURE = REPOSITORY / "docs" / "pictures" / "results.png"
COLUMNS = 4  # of the picture
NOT_YET = "not run yet"


class Published(NamedTuple):
    """Scores of other programs, A3C's after 80M env steps; docs/results.md cites them."""

    goal: float  # ours
    sb3_a2c: float
    sb3_ppo: float
    rllib_a2c: float | None = None
    a3c_80m: float | None = None


ATARI = {
    "ALE/Breakout-v5": Published(400, 280, 398, 374, 581),
    "ALE/SpaceInvaders-v5": Published(1_000, 627, 960, 692, 1_044),
    "ALE/Qbert-v5": Published(15_000, 3_882, 15_627, 3_620, 20_722),
    "ALE/BeamRider-v5": Published(3_400, 2_890, 3_397, 1_401, 8_883),
    "ALE/Seaquest-v5": Published(1_800, 1_721, 1_784, None, 1_782),
    "ALE/Enduro-v5": Published(800, 0, 996, None, 0),
    "ALE/Pong-v5": Published(20.5, 17.3, 21.0, None, 20.9),
}
MUJOCO = {
    "HalfCheetah-v5": Published(3_000, 3_041, 5_819),
    "Hopper-v5": Published(2_500, 733, 2_410),
}
MUJOCO_STEPS = 1_000_000

Rows = Sequence[Mapping[str, str]]


def by_run(rows: Rows) -> dict[str, list[Mapping[str, str]]]:
    """The sessions of each run, oldest first."""
    runs: dict[str, list[Mapping[str, str]]] = {}
    for row in rows:
        runs.setdefault(row["run"], []).append(row)
    return runs


def beside(published: Mapping[str, Published], rows: Rows, whole: int) -> list[str]:
    """The games beside the published scores; a whole run has `whole` env steps."""
    titles = ("SB3 A2C", "SB3 PPO", "RLlib A2C", "A3C, 80M")
    shown = [
        any(column) for column in zip(*(known[1:] for known in published.values()), strict=True)
    ]
    lines, runs = [], by_run(rows).values()
    for env_id, known in published.items():
        mine = [sessions for sessions in runs if sessions[0]["env_id"] == env_id]
        others = ["–" if score is None else f"{score:,g}" for score in known[1:]]
        scores = itertools.compress(others, shown)
        lines.append([name_of(env_id), *scores, f"{known.goal:,g}", *ours(mine, whole, known.goal)])
    names = itertools.compress(titles, shown)
    return machine.table(("game", *names, "goal", "a3c-cluster", "seeds"), lines)


def name_of(env_id: str) -> str:
    return env_id.removeprefix("ALE/").removesuffix("-v5") if "/" in env_id else env_id


def ours(runs: Sequence[Rows], whole: int, goal: float) -> tuple[str, str]:
    """The score of a game's finished runs and their number, or how far the furthest is."""
    final = [[r for r in run if r["mean"] and int(r["env_steps"]) >= whole] for run in runs]
    means = [float(found[-1]["mean"]) for found in final if found]
    if means:
        spread = f" ({min(means):,.1f} to {max(means):,.1f})" if len(means) > 1 else ""
        return f"{format_mean(statistics.fmean(means), goal)}{spread}", str(len(means))
    furthest = max((run[-1] for run in runs), key=lambda r: int(r["env_steps"]), default=None)
    if furthest is None:
        return NOT_YET, "0"
    steps = int(furthest["env_steps"]) / 1e6
    return f"not finished: {furthest['mean_return_100'] or '–'} in training at {steps:.2f}M", "0"


def every_run(rows: Rows) -> list[str]:
    """All runs, with what they took."""
    lines = []
    for run, sessions in sorted(by_run(rows).items()):
        last = sessions[-1]
        scored = [r for r in sessions if r["mean"]]
        score = "–"
        if scored:
            r = scored[-1]
            score = f"{float(r['mean']):,.1f} ± {float(r['deviation']):,.1f}"
            score += f" at {int(r['env_steps']):,}" if r["env_steps"] != last["env_steps"] else ""
        trained = [r for r in sessions if r["env_steps"] != r["from_env_steps"]]
        afresh = sum(r["begun_from"].startswith("compact") for r in trained)
        machines = ", ".join(dict.fromkeys(r["machine"] for r in sessions))
        steps, hours = f"{int(last['env_steps']):,}", f"{float(last['wall_s']) / 3600:.2f}"
        mean = last["mean_return_100"] or "–"
        lines.append(
            (run, steps, mean, score, hours, last["workers"], len(trained), afresh, machines)
        )
    titles = ("run", "env steps", "in training", "100 games", "hours", "workers")
    more = ("sessions", "optimizer reset", "machine")
    return machine.table((*titles, *more), lines) if lines else [NOT_YET]


def read_curves(folder: Path, rows: Rows) -> dict[str, list[Series]]:
    """The curves of each environment: env steps in millions, mean return."""
    found: dict[str, list[Series]] = {}
    for run, sessions in by_run(rows).items():
        path = folder / f"{run}.csv"
        if not path.exists():  # no game has ended yet
            continue
        points = machine.read(path)
        steps = np.array([int(p["env_steps"]) / 1e6 for p in points])
        means = np.array([float(p["mean_return_100"]) for p in points])
        found.setdefault(sessions[0]["env_id"], []).append(series(steps, means))
    return found


def figure(curves: Mapping[str, Sequence[Series]]) -> Figure:
    """Axes for each environment: a thin line a seed, their mean with its band, published marks."""
    num_rows = -(-len(curves) // COLUMNS)
    size = (14.0, pictures.HEADER + 3.4 * num_rows)
    page = pictures.page(
        "Mean return of the last 100 games", "thin: seeds · band: 95 % interval of the mean", size
    )
    grid = page.subplots(num_rows, min(COLUMNS, len(curves)), squeeze=False)
    for axes in grid.flat[len(curves) :]:
        axes.set_axis_off()
    for axes, (env_id, found) in zip(grid.flat, curves.items(), strict=False):
        for points in found:
            axes.plot(*points, color=COLOURS[0], linewidth=1, alpha=0.6)
        if len(found) > 1:
            band = across_seeds(found, 200)
            axes.fill_between(band.x, band.low, band.high, color=COLOURS[0], alpha=0.2)
            axes.plot(band.x, band.mean, color=COLOURS[0], linewidth=2.5, label="mean of the seeds")
        known = (ATARI | MUJOCO)[env_id]
        axes.axhline(known.sb3_a2c, color=FAINT, linestyle=":", label="SB3 A2C at the end")
        axes.axhline(known.sb3_ppo, color=FAINT, linestyle="--", label="SB3 PPO at the end")
        pictures.style_axes(axes, "million env steps", "", name_of(env_id))
    pictures.legend_below(page, [*grid.flat])
    return page


def main() -> int:
    """Fill the page and draw the picture."""
    parser = argparse.ArgumentParser(
        "benchmarks.results_page", description=__doc__.splitlines()[0], allow_abbrev=False
    )
    parser.add_argument("--output", type=Path, default=machine.RESULTS / "games", metavar="DIR")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    arguments = parser.parse_args()
    rows = machine.read(arguments.output / "index.csv")
    found = read_curves(arguments.output, rows)
    curves = {env_id: found[env_id] for env_id in [*ATARI, *MUJOCO] if env_id in found}
    shown = [NOT_YET]
    if curves:
        shown = [f"![Curves of the games](pictures/{arguments.picture.name})"]
        print(f"picture: {pictures.save(figure(curves), arguments.picture)}")
    made = {
        "Atari": beside(ATARI, rows, WHOLE),
        "MuJoCo": beside(MUJOCO, rows, MUJOCO_STEPS),
        "runs": every_run(rows),
        "curves": shown,
    }
    arguments.page.write_text(machine.filled(arguments.page.read_text(), made))
    print("\n".join(line for lines in made.values() for line in ["", *lines]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
