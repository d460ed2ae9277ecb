"""A race on Pong or Breakout: ours and its peers train from scratch in turns on the same cores.

    python -m benchmarks.race --seed 1              # on Pong, into runs/bench/race-pong.csv
    python -m benchmarks.race --game breakout       # to a mean of 30, against three of the peers
    python -m benchmarks.race --only a3c-cluster --variant=--no-normalize-advantages --whole

All programs are alive, and all but one are frozen, so a slow hour of the machine affects all
programs equally. A program's time is the sum of its own turns, including its start. When the mean
of a program's last 100 games has reached the goal, the round is completed, so that all have had the
same time; with `--whole` the others continue until they end. Run it on an otherwise idle machine;
it takes as many times as long as there are programs. Every program uses its published settings.
"""

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.race")

import argparse
import csv
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from a3c.plot import pictures
from a3c.plot.pictures import FAINT
from a3c.process.process_records import read_json
from a3c.run.rows import read_rows
from a3c.run.rundir import REPOSITORY, RunDir
from benchmarks import machine
from benchmarks.peers import venvs
from benchmarks.peers.catalogue import OURS, Settings
from benchmarks.peers.measure import flags_of, our_versions
from benchmarks.peers.programs.progress import CURVE, WINDOW
from benchmarks.peers.rows import pack
from benchmarks.turns import MAX_FROZEN_S, Tree

POLL_S = 0.5
GOALS = {"pong": 18.0, "breakout": 30.0}  # by the presets, means of 100 games
START_S = 30.0  # of the first turn; a program isn't frozen while it starts
FOREVER_S = 10**9
# A frozen program sends no heartbeats, and its own supervisor must not treat it as dead.
PATIENT = ("--ps-timeout", "1800", "--heartbeat-timeout", "3600")


class Contestant(NamedTuple):
    """A program with its settings; ours uses `flags` instead of `settings`."""

    name: str
    venv: str = ""
    program: str = ""
    settings: Settings = {}  # noqa: RUF012 - never changed
    flags: tuple[str, ...] = ()
    any_game: bool = False  # otherwise it plays only Pong; its settings get the game


A2C: Settings = {"algorithm": "a2c", "threads": 1, "vec_env": "subproc"}
PPO: Settings = {"algorithm": "ppo", "threads": 2, "vec_env": "subproc"}
CLEANRL: Settings = {"threads": 2, "vec_env": "envpool"}
CONTESTANTS = (
    Contestant(OURS, any_game=True),
    Contestant("sb3-a2c", "sb3", "sb3_race", A2C, any_game=True),
    Contestant("sb3-ppo", "sb3", "sb3_race", PPO, any_game=True),
    Contestant("cleanrl-ppo", "cleanrl", "cleanrl_race", CLEANRL, any_game=True),
    Contestant("sample-factory", "sample-factory", "sample_factory_pong"),
    Contestant("rllib-impala", "rllib", "rllib_pong", {"runners": 2}),
    Contestant("pytorch-a3c", "pytorch-a3c", "pytorch_a3c_pong", {"processes": 16}),
)


class Row(NamedTuple):
    """What one program has reached; times are its own."""

    time: str
    commit: str
    machine: str
    load: float  # before the run began
    program: str
    versions: str
    settings: str
    seed: int
    solved: bool
    wall_s: float
    cpu_s: float
    env_steps: int
    games: int
    mean_return_100: float
    note: str


class Turns:
    """The times of a program's turns, by the clock."""

    def __init__(self) -> None:
        self._turns: list[tuple[float, float]] = []

    def add(self, begin: float, end: float) -> None:
        self._turns.append((begin, end))

    def seconds(self, until: float) -> float:
        """Its total running time up to a time of the clock."""
        return sum(min(end, until) - begin for begin, end in self._turns if begin < until)


class RacingProgram:
    """A program that starts in its first turn and is frozen between turns."""

    def __init__(self, contestant: Contestant, seed: int, arguments: argparse.Namespace) -> None:
        self.name = contestant.name
        self._contestant, self._seed, self._arguments = contestant, seed, arguments
        self._curve = curve_path(arguments.output, contestant.name, seed)
        self._scratch = tempfile.TemporaryDirectory(prefix="a3c-race-")
        self._run = RunDir(Path(self._scratch.name) / "run")
        self._raw = Path(self._scratch.name) / "curve.csv"
        self._output = Path(self._scratch.name) / "output.txt"
        self._where = machine.here()
        self._turns, self._began = Turns(), 0.0
        self._tree: Tree | None = None
        self._cpu_s = 0.0

    @property
    def ended(self) -> bool:
        return self._tree is not None and self._tree.exit_code() is not None

    def turn(self, seconds: float) -> None:
        """Let it run for this time, or until it ends."""
        begin = time.time()
        if self._tree is None:
            self._began = begin
            self._tree = Tree(self._start())
        self._tree.resume()
        while not self.ended and time.time() < begin + seconds:
            self._cpu_s = max(self._cpu_s, self._tree.cpu_seconds())  # 0 once it has ended
            time.sleep(POLL_S)
        self._tree.freeze()
        self._turns.add(begin, time.time())

    def solved(self) -> bool:
        """Whether it has ended with a mean of 100 games that reaches the goal."""
        return self.ended and self.row().solved

    def save_curve(self) -> None:
        self._curve.parent.mkdir(parents=True, exist_ok=True)
        with self._curve.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([CURVE, *self._rows()])

    def row(self) -> Row:
        """Its result so far, in its own running time."""
        one, arguments = self._contestant, self._arguments
        own = self._rows()
        wall_s, env_steps, games, mean = own[-1] if own else (0.0, 0, 0, "")
        mean = float("nan" if mean == "" else mean)
        if one.program:
            versions, settings = f"benchmarks/peers/{one.venv}.txt", self._settings
            solved = mean >= arguments.goal and int(games) >= WINDOW
        else:
            versions = our_versions(self._run) if self._run.config.exists() else ""
            flags = [*one.flags, *arguments.flags]
            settings = {"preset": arguments.game, "workers": arguments.workers, "flags": flags}
            # Its last row holds some games more than those that solved it.
            solved = (read_json(dict, self._run.summary) or {}).get("solved", False)
        note = "solved" if solved else "not solved by then"
        if self._tree and self._tree.exit_code() and not solved:
            note = " ".join(["failed:", *self._output.read_text().splitlines()[-1:]])
        return Row(
            *self._where,
            self.name,
            versions,
            pack(settings),
            self._seed,
            solved,
            wall_s,
            round(self._cpu_s, 1),
            int(env_steps),
            int(games),
            mean,
            note,
        )

    def close(self) -> None:
        """End the program."""
        if self._tree:
            self._tree.close()
        self._scratch.cleanup()

    def _rows(self) -> list[tuple[Any, ...]]:
        """Its curve, by its own running time."""
        is_peer = bool(self._contestant.program)
        rows = peer_rows(self._raw) if is_peer else our_rows(self._run, self._began)
        return [(round(self._turns.seconds(self._began + at), 1), *rest) for at, *rest in rows]

    @property
    def _settings(self) -> Settings:
        """A peer's settings."""
        game = {"game": self._arguments.game.title()} if self._contestant.any_game else {}
        return game | self._contestant.settings

    def _start(self) -> subprocess.Popen[Any]:
        one, arguments = self._contestant, self._arguments
        common: dict[str, Any] = {"seed": self._seed}
        if one.program:
            command = venvs.command(one.venv, arguments.venvs, one.program)
            common |= {"settings": pack(self._settings), "curve": self._raw, "began": self._began}
            command += flags_of(common | {"goal": arguments.goal, "max_s": FOREVER_S})
        else:
            command = [sys.executable, str(REPOSITORY / "launch_cluster.py"), "--mode", "child"]
            common |= {"workers": arguments.workers, "stop_at_return": arguments.goal}
            common |= {"stop_window": WINDOW, "evaluation_episodes": 0}
            fixed = {"preset": arguments.game, "run_dir": self._run.path}
            command += [*flags_of(fixed | common), *PATIENT, *one.flags, *arguments.flags]
        with self._output.open("w") as output:
            return subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env={**os.environ, **(venvs.ENVIRONMENT if one.program else {})},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


def main() -> int:
    """Run the race, keep its rows, and draw them."""
    arguments = parse()
    machine.end_on_signals()
    for venv in {one.venv for one in arguments.contestants if one.venv}:
        try:
            venvs.make(venv, arguments.venvs)
        except venvs.VenvError as error:
            sys.exit(f"{venv} can't be installed here: {error}")
    with racing_programs(arguments) as programs:
        race(programs, arguments)  # if it is interrupted, earlier results stay as they are
        rows = [program.row() for program in programs]
        for program in programs:
            program.save_curve()
        machine.append(arguments.output, rows)
        print("\n".join(summary(rows)))
        if made := figure(arguments, machine.read_as(arguments.output, Row)):
            print(f"\npicture: {pictures.save(made, arguments.output.with_suffix('.png'))}")
    return int(any(row.note.startswith("failed:") for row in rows))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("benchmarks.race", description=__doc__.splitlines()[0])
    parser.add_argument("--game", choices=GOALS, default="pong")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--turn", type=float, default=20.0, help="seconds of each turn, at most")
    parser.add_argument("--whole", action="store_true", help="go on when one has solved it")
    parser.add_argument(
        "--variant", action="append", default=[], metavar="FLAGS", help="of ours, to take part too"
    )
    parser.add_argument("--max-minutes", type=float, default=60.0, help="of each one's own time")
    parser.add_argument("--output", type=Path, help="runs/bench/race-GAME.csv by default")
    parser.add_argument("--only", nargs="+", choices=[one.name for one in CONTESTANTS])
    parser.add_argument("--goal", type=float, help="18 for Pong and 30 for Breakout by default")
    parser.add_argument("--workers", type=int, default=2, help="of ours only")
    parser.add_argument("--venvs", type=Path, default=Path("runs/peers"))
    parser.add_argument("flags", nargs="*", help="after --: settings of ours to change")
    arguments = parser.parse_args()
    arguments.goal = GOALS[arguments.game] if arguments.goal is None else arguments.goal
    arguments.output = arguments.output or Path(f"runs/bench/race-{arguments.game}.csv")
    arguments.contestants = [variant(flags) for flags in arguments.variant]
    for one in CONTESTANTS:
        if not arguments.only or one.name in arguments.only:
            if one.any_game or arguments.game == "pong":
                arguments.contestants.append(one)
            elif arguments.only:
                parser.error(f"{one.name} plays only Pong: leave it out of --only")
    return arguments


@contextmanager
def racing_programs(arguments: argparse.Namespace) -> Iterator[list[RacingProgram]]:
    """The programs of the race; all of them are ended on exit."""
    programs = [RacingProgram(one, arguments.seed, arguments) for one in arguments.contestants]
    try:
        yield programs
    finally:
        for program in programs:
            program.close()


def variant(flags: str) -> Contestant:
    """A contestant of ours with other flags."""
    words = shlex.split(flags)
    name = "-".join([OURS, *(word.lstrip("-") for word in words)])
    return Contestant(name, flags=tuple(words), any_game=True)


def race(programs: Sequence[RacingProgram], arguments: argparse.Namespace) -> None:
    """Rounds of turns until a program has solved the game or all have ended.

    They start in the first round, ours last, because ours can't be frozen during all other starts.
    """
    turn_s = min(arguments.turn, MAX_FROZEN_S / max(1, len(programs) - 1))
    for number in range(round(60 * arguments.max_minutes / turn_s)):
        for program in programs if number else programs[::-1]:
            if not program.ended:
                program.turn(turn_s if number else max(turn_s, START_S))
        tell(number + 1, programs)
        solved = not arguments.whole and any(program.solved() for program in programs)
        if solved or all(program.ended for program in programs):
            return


def tell(number: int, programs: Sequence[RacingProgram]) -> None:
    """Print a line about a round."""
    rows = [program.row() for program in programs]
    found = [f"{row.program} {row.env_steps:,} {row.mean_return_100:.1f}" for row in rows]
    print(f"round {number}: {'; '.join(found)}", flush=True)


# --- curves, by the clock -------------------------------------------------------------------------


def peer_rows(path: Path) -> list[tuple[Any, ...]]:
    """The curve that a peer's program writes."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if None not in row.values()]
    return [(float(row["wall_s"]), *(row[name] for name in CURVE[1:])) for row in rows]


def our_rows(run: RunDir, began: float) -> list[tuple[Any, ...]]:
    """The curve of a run of ours; a solved run ends with its summary."""
    path = run.metrics("worker-0")
    rows = read_rows(path) if path.exists() else []
    found = chief_curve(rows, began)
    if run.summary.exists() and (end := json.loads(run.summary.read_text()))["solved"]:
        games = max((row.get("cluster/episodes", 0) for row in rows), default=0)
        wall_s = round(run.summary.stat().st_mtime - began, 1)
        found.append((wall_s, end["env_steps"], games, round(end["mean_return_100"], 2)))
    return found


def chief_curve(rows: Sequence[Mapping[str, Any]], began: float) -> list[tuple[Any, ...]]:
    """The curve from the chief's rows."""
    return [
        (
            round(row["time"] - began, 1),
            row["env_steps"],
            row["cluster/episodes"],
            round(row["cluster/mean_return_100"], 2) if "cluster/mean_return_100" in row else "",
        )
        for row in rows
        if "cluster/episodes" in row
    ]


# --- the table and the picture --------------------------------------------------------------------


def curve_path(output: Path, program: str, seed: int) -> Path:
    return output.with_name(f"{output.stem}-curves") / f"{program}-{seed}.csv"


def summary(rows: Sequence[Row]) -> list[str]:
    """The table for the docs."""
    found = [
        (row.program, f"{row.wall_s / 60:.1f} min", f"{row.env_steps:,}", row.mean_return_100)
        for row in rows
    ]
    return machine.table(("program", "its own time", "env steps", "mean of 100 games"), found)


Curve = list[tuple[float, float]]  # minutes, mean return


def curve(path: Path) -> Curve:
    """The rows of a curve after its first game has ended."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["mean_return_100"]]
    return [(float(row["wall_s"]) / 60, float(row["mean_return_100"])) for row in rows]


def figure(arguments: argparse.Namespace, rows: Sequence[Row]) -> Figure | None:
    """A line for each program and seed of the table, the last one; None if no game has ended."""
    curves: dict[str, list[tuple[Row, Curve]]] = {}
    for row in {(row.program, row.seed): row for row in rows}.values():
        if found := curve(curve_path(arguments.output, row.program, row.seed)):
            curves.setdefault(row.program, []).append((row, found))
    if not curves:
        return None
    seeds = sorted({row.seed for row in rows})
    numbers = ("seeds " if len(seeds) > 1 else "seed ") + ", ".join(map(str, seeds))
    subtitle = f"{numbers} · turns on the same cores · {rows[0].machine}"
    title = f"{arguments.game.title()}: mean return of the last 100 games"
    made = pictures.page(title, subtitle)
    axes = made.subplots()
    axes.axhline(arguments.goal, color=FAINT, linestyle=":", linewidth=1.5)
    width = 2.0 if len(seeds) == 1 else 1.5
    for i, (program, ended) in enumerate(curves.items()):
        ends = [f"{row.mean_return_100:.1f} after {row.env_steps:,}" for row, _ in ended]
        label = f"{program}: {'; '.join(ends)} env steps"
        for _, found in ended:
            (line,) = axes.plot(*zip(*found, strict=True), label=label, linewidth=width)
            line.set(**pictures.line_style(i))
    axes.set_xlim(left=0)
    pictures.style_axes(axes, "minutes of its own, start included", "mean return")
    pictures.legend_below(made, [axes])
    return made


if __name__ == "__main__":
    sys.exit(main())
