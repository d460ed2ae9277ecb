"""Train a plan of games and seeds to its end, over as many restarts and machines as that takes.

    python -m benchmarks.results --list                 # the plan, and how far each run is
    python -m benchmarks.results --minutes 120          # go on with it for two hours
    python -m benchmarks.results --games Breakout Pong --seeds 1 2 --env-steps 3000000 --workers 2
    python -m benchmarks.results -- --preset atari      # flags for the launcher

A run is one game with one seed. The launcher trains the next unfinished run of the plan; then 100
whole games are played with its weights: raw scores, sampled actions unless the preset has
`evaluation_greedy`. Ctrl-C, SIGTERM, a closed terminal and --minutes end the cluster in order, with
a last checkpoint; a second Ctrl-C ends it at once.

Run folders (--folder) are large and stay on this machine. The results (--output) are small and made
for Git: a curve and a compact checkpoint per run, and `index.csv` with a row per session of
training. They are written every few minutes. A run goes on from its run folder or from its compact
checkpoint, whichever is further, so that a clone on another machine goes on too; from a compact
checkpoint the optimizer's statistics start afresh. The best agent of each game goes to --zoo.

Flags after `--` are for runs that begin; later sessions keep the settings of the run. Where the
preset has no --anneal-steps, schedules end at the run's last goal.
"""

if not __package__:
    raise SystemExit("run it as a module: .venv/bin/python -m benchmarks.results")

import argparse
import fcntl
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from a3c.config import command_line
from a3c.errors import A3CError, UserError
from a3c.process import console
from a3c.process.environment import adopt_environment
from a3c.process.signals import not_ignored
from a3c.process.startup import import_tensorflow
from a3c.run import checkpoint, rundir
from a3c.run.checkpoint import DamagedCheckpointError, Manifest
from a3c.run.rows import read_rows
from a3c.run.rundir import REPOSITORY, RunDir
from benchmarks import compact, machine

GAMES = ("Breakout", "SpaceInvaders", "Qbert", "BeamRider", "Seaquest", "Enduro", "Pong")
SEEDS = (1, 2, 3)
SHORT, WHOLE = 3_000_000, 10_000_000  # env steps; frames are four times as many
CURVE_EVERY = 20_000  # env steps
EVALUATION_GAMES = 100
POLL_S = 0.5
LAST_LINES = 15  # of the log, where a launcher fails
SCRATCH, FOLDER = "scratch", "run folder"
COMPACT = "compact checkpoint, the optimizer's statistics afresh"


class Goal(NamedTuple):
    """A run, and the env steps that it shall reach; its schedules end at `last`."""

    env_id: str
    seed: int
    env_steps: int
    last: int

    @property
    def game(self) -> str:
        """A short name: `breakout`, `cartpole`."""
        name = re.sub(r"-v\d+$", "", re.split("[/:]", self.env_id)[-1])
        return rundir.slug(name)

    @property
    def run(self) -> str:
        """The name of the run."""
        return f"{self.game}-{self.seed}"


def plan(games: Sequence[str], seeds: Sequence[int], stages: Sequence[int]) -> list[Goal]:
    """The goals in the order of work: each stage of env steps with all seeds and games.

    Without `stages` the first seed is trained to the end before the others begin, and these come to
    3M before any goes on to the end.
    """
    parts = [(seeds, n) for n in stages]
    if not stages:
        parts = [(seeds[:1], WHOLE), (seeds[1:], SHORT), (seeds[1:], WHOLE)]
    last = max(n for _, n in parts)
    ids = [game if re.search("[-/:]", game) else f"ALE/{game}-v5" for game in games]
    return [Goal(i, seed, n, last) for part, n in parts for seed in part for i in ids]


class Session(NamedTuple):
    """One session of training of a run: a row of the index."""

    time: str
    commit: str
    machine: str
    load: float
    run: str
    env_id: str
    seed: int
    begun_from: str
    from_env_steps: int
    command: str
    workers: int = 0
    env_steps: int = 0
    wall_s: float = 0.0  # of training, over all sessions of the run
    mean_return_100: float | str = ""
    games: int | str = ""  # whole games played with the weights of that env step
    mean: float | str = ""
    deviation: float | str = ""


class Point(NamedTuple):
    """A row of a curve."""

    env_steps: int
    wall_s: float
    mean_return_100: float


class Stop:
    """Whether to stop: when time is up, or after a signal, which also ends the current program."""

    def __init__(self, minutes: float) -> None:
        self._deadline = time.monotonic() + 60.0 * minutes
        self.signal = 0
        self.process: subprocess.Popen[Any] | None = None
        for number in not_ignored(signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: object) -> None:
        self.signal = number
        if number == signal.SIGHUP:  # the terminal is closed
            console.discard(sys.stdout)
        if self.process:
            self.process.terminate()

    @property
    def is_due(self) -> bool:
        """Whether a signal came or the time is up."""
        return bool(self.signal) or time.monotonic() >= self._deadline


class Results:
    """The folders of a plan's runs, and what is known of each run."""

    def __init__(self, folder: Path, output: Path, zoo: Path) -> None:
        self.folder, self.output, self.zoo = folder.absolute(), output.absolute(), zoo.absolute()
        self.index = self.output / "index.csv"

    def furthest(self, goal: Goal) -> tuple[str, Manifest | None]:
        """Where a run goes on from, and the manifest of that checkpoint; None at its beginning."""
        run = RunDir(self.folder / goal.run)
        newest = checkpoint.newest_valid(run.checkpoints)
        own = newest[1] if newest else None
        kept = _manifest(self.output / goal.run)
        if kept and (own is None or own.step < kept.step):
            own = kept
        _refuse_other_game(own, goal, goal.run, "another --folder and --output")
        _refuse_other_game(_manifest(self.zoo / goal.game), goal, goal.game, "another --zoo")
        if own and checkpoint.is_compact(own):
            return COMPACT, own
        return (FOLDER if run.config.exists() else SCRATCH), own

    def sessions(self) -> list[dict[str, str]]:
        """The rows of the index."""
        return machine.read(self.index) if self.index.exists() else []

    def last(self, goal: Goal, *, evaluated: bool = False) -> dict[str, str] | None:
        """The run's last row, or the last whose weights were evaluated; None if there is none."""
        mine = [r for r in self.sessions() if (r["run"], r["env_id"]) == (goal.run, goal.env_id)]
        rows = [row for row in mine if row["mean"] or not evaluated]
        return rows[-1] if rows else None

    def is_finished(self, goal: Goal) -> bool:
        """Whether the run was evaluated at its goal."""
        row = self.last(goal, evaluated=True)
        return row is not None and int(row["env_steps"]) >= goal.env_steps

    def keep(self, goal: Goal, session: Session) -> Session:
        """Write the run's curve, its compact checkpoint and its row; returns the row."""
        run = RunDir(self.folder / goal.run)
        newest = checkpoint.newest_valid(run.checkpoints)
        if newest is None:
            return session
        path, manifest = newest
        mean = manifest.mean_return_100
        session = session._replace(
            workers=manifest.config["cluster"]["workers"],
            env_steps=manifest.step,
            wall_s=round(manifest.wall_s, 1),
            mean_return_100="" if mean is None else round(mean, 2),
        )
        compact.write(path, self.output / goal.run)
        self._keep_curve(run, self.output / f"{goal.run}.csv", manifest.step)
        self.keep_row(session)
        return session

    def _keep_curve(self, run: RunDir, path: Path, step: int) -> None:
        """Write the curve up to a step: what this run folder doesn't have is kept as it is."""
        metrics = run.metrics("worker-0")
        found = read_rows(metrics) if metrics.exists() else []
        rows = [row for row in found if {"wall_s", "cluster/mean_return_100"} <= set(row)]
        first = rows[0]["env_steps"] if rows else step + 1
        known = machine.read(path) if path.exists() else []
        before: list[Any] = [row.values() for row in known if int(row["env_steps"]) < first]
        points = {
            row["env_steps"] // CURVE_EVERY: Point(  # the last of every 20,000
                row["env_steps"],
                round(row["wall_s"], 1),
                round(row["cluster/mean_return_100"], 2),
            )
            for row in rows
            if row["env_steps"] <= step
        }
        machine.write(path, [Point(*row) for row in (*before, *points.values())])

    def keep_row(self, session: Session) -> None:
        """Add the row to the index, or replace what it was before; others may write there too."""
        self.output.mkdir(parents=True, exist_ok=True)
        folder = os.open(self.output, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            mine = (session.time, session.run)
            others: list[Any] = [
                r.values() for r in self.sessions() if (r["time"], r["run"]) != mine
            ]
            machine.write(self.index, [*(Session(*row) for row in others), session])
        finally:
            os.close(folder)


def _manifest(path: Path) -> Manifest | None:
    """The manifest of a compact checkpoint; None if there is none, UserError if it is damaged."""
    try:
        return checkpoint.verify(path) if path.is_dir() else None
    except DamagedCheckpointError as error:
        raise UserError(f"{path} is damaged ({error}): restore or remove it") from None


def _refuse_other_game(known: Manifest | None, goal: Goal, name: str, remedy: str) -> None:
    """UserError if a checkpoint is of another environment with the same short name."""
    if known and (env_id := known.config["env"]["env_id"]) != goal.env_id:
        raise UserError(f"{name} is of {env_id}, not of {goal.env_id}: give {remedy}")


# --- one run --------------------------------------------------------------------------------------


def work(results: Results, goal: Goal, arguments: argparse.Namespace, stop: Stop) -> bool:
    """Train a run to its goal and play the games; returns whether nothing failed."""
    log_path = results.folder / f"{goal.run}.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        if not rundir.lock(log.fileno()):  # another works on it, or its programs have not ended yet
            return True
        adopt_environment(1)
        import_tensorflow()  # compact checkpoints are made here
        begun_from, manifest = results.furthest(goal)
        if begun_from == COMPACT and manifest:
            unpack(results, goal, manifest)
        step = manifest.step if manifest else 0
        command = launcher(results, goal, begun_from, arguments)
        shown = shlex.join(word.removeprefix(f"{REPOSITORY}/") for word in command[1:])
        session = Session(
            *machine.here(), goal.run, goal.env_id, goal.seed, begun_from, step, command=shown
        )
        if step < goal.env_steps:
            say(f"{goal.run}: from {begun_from}, env step {step:,}, to {goal.env_steps:,}")
            follow(command, log, stop, lambda: keep(results, goal, session), arguments.save_every)
        session = keep(results, goal, session)
        if session.env_steps >= goal.env_steps and not stop.is_due:
            evaluate(results, goal, session, log, stop)
    if stop.is_due or results.is_finished(goal):
        return True
    lines = log_path.read_text(errors="replace").splitlines()[-LAST_LINES:]
    say("\n".join([f"{goal.run} has failed; the end of {log_path}:", *lines]))
    return False


def keep(results: Results, goal: Goal, session: Session) -> Session:
    """Write what a run has come to, and say it."""
    session = results.keep(goal, session)
    mean = session.mean_return_100
    say(
        f"{goal.run}: {session.env_steps:,} of {goal.env_steps:,} env steps after "
        f"{session.wall_s / 3600:.2f} h of training, mean return {'-' if mean == '' else mean}"
    )
    return session


def launcher(
    results: Results, goal: Goal, begun_from: str, arguments: argparse.Namespace
) -> list[str]:
    """The command that trains a run to its goal."""
    words = ["--max-env-steps", str(goal.env_steps)]
    words += ["--workers", str(arguments.workers)] if arguments.workers else []
    if begun_from == SCRATCH:
        words += ["--env-id", goal.env_id, "--seed", str(goal.seed), *arguments.flags]
        words += ["--stop-at-return", "none", "--evaluation-episodes", "0"]
        config, _ = command_line.parse_config(words, "benchmarks.results, after --", "")
        if config.learning.anneal_steps is None:
            words += ["--anneal-steps", str(goal.last)]
    else:
        words.append("--resume")
    script = [sys.executable, str(REPOSITORY / "launch_cluster.py"), "--mode", "child"]
    return [*script, "--run-dir", str(results.folder / goal.run), *words]


def unpack(results: Results, goal: Goal, manifest: Manifest) -> None:
    """Make a run folder from the compact checkpoint; one that is behind it is put aside."""
    path = results.folder / goal.run
    newest = checkpoint.newest_valid(RunDir(path).checkpoints)
    if newest and newest[1].step == manifest.step:
        return  # unpacked before, and nothing was saved since
    if path.exists():
        path.rename(path.with_name(f"{path.name}-before-{manifest.step}-{time.time():.0f}"))
    config = command_line.from_dict(manifest.config, str(results.output / goal.run))
    run = rundir.create(path, config, None, resume=False)
    compact.write(results.output / goal.run, run.checkpoints / str(manifest.step))


def evaluate(results: Results, goal: Goal, session: Session, log: IO[bytes], stop: Stop) -> None:
    """Play games with the compact checkpoint and keep the scores; the best goes to the zoo."""
    path = results.output / goal.run
    say(f"{goal.run}: playing {EVALUATION_GAMES} games")
    script = [sys.executable, str(REPOSITORY / "evaluate.py"), str(path), "--json"]
    said = results.folder / f"{goal.run}.json"
    with said.open("wb") as file:
        if follow([*script, "--episodes", str(EVALUATION_GAMES)], log, stop, output=file):
            return
    scores = json.loads(said.read_bytes())
    returns = scores.pop("returns")
    scores = {k: v for k, v in scores.items() if k not in ("lengths", "checkpoint")}
    compact.write(path, path, scores)
    mean, deviation = round(scores["mean"], 2), round(statistics.stdev(returns), 2)
    results.keep_row(session._replace(games=len(returns), mean=mean, deviation=deviation))
    say(f"{goal.run}: mean {mean:,} of {len(returns)} games, deviation {deviation:,}")
    in_zoo = results.zoo / goal.game
    known = _manifest(in_zoo)
    if known is None or known.evaluation is None or known.evaluation["mean"] < scores["mean"]:
        compact.write(path, in_zoo)
        say(f"{goal.run}: the best of its game, now {in_zoo}")


def follow(
    command: Sequence[str],
    log: IO[bytes],
    stop: Stop,
    keep: Callable[[], object] = lambda: None,
    every_s: float = 1e9,
    output: IO[bytes] | None = None,
) -> int:
    """Run a program to its end, or to the stop; calls `keep` meanwhile. Returns its exit code.

    It has a session of its own, because Ctrl-C in the terminal shall reach it only once.
    """
    with subprocess.Popen(
        command, stdout=output or log, stderr=log, start_new_session=True, env=ENVIRONMENT
    ) as process:
        stop.process = process
        if stop.signal:  # it came just before
            process.terminate()
        due = time.monotonic() + every_s
        try:
            while process.poll() is None and not stop.is_due:
                time.sleep(POLL_S)
                if time.monotonic() >= due:
                    keep()
                    due = time.monotonic() + every_s
        finally:
            if not stop.signal:
                process.terminate()
            process.wait()
            stop.process = None
    return process.returncode


# --- the command ----------------------------------------------------------------------------------

ENVIRONMENT = dict(os.environ)  # for the programs, before TensorFlow's variables are set here


def table(results: Results, goals: Sequence[Goal]) -> list[str]:
    """The plan, with how far each run is."""
    lines = [f"{'run':18}{'env steps':>12} of {'goal':12}{'mean return':>12}{'hours':>8}  state"]
    for goal in goals:
        done = results.last(goal, evaluated=True)
        _, manifest = results.furthest(goal)
        state = "not begun"
        if results.is_finished(goal) and done:
            state = f"finished: mean {done['mean']} of {done['games']} games, ± {done['deviation']}"
        elif rundir.is_held(results.folder / goal.run):
            state = "at work"
        elif manifest:
            state = "begun"
        step, wall_s, mean = 0, 0.0, None
        if manifest:
            step, wall_s, mean = manifest.step, manifest.wall_s, manifest.mean_return_100
        shown = "-" if mean is None else f"{mean:,.1f}"
        lines.append(
            f"{goal.run:18}{step:>12,} of {goal.env_steps:<12,}{shown:>12}{wall_s / 3600:>8.2f}  "
            f"{state}"
        )
    return lines


def say(text: str) -> None:
    """Print a line with the time."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line; what comes after `--` is for the launcher."""
    words = list(words)
    end = words.index("--") if "--" in words else len(words)
    parser = command_line.Parser(prog="benchmarks.results", description=__doc__.splitlines()[0])
    parser.add_argument("--games", nargs="+", default=GAMES, metavar="GAME", help="or env ids")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, metavar="N")
    parser.add_argument("--env-steps", nargs="+", type=int, default=(), metavar="N", help="stages")
    parser.add_argument("--workers", type=int, metavar="N", help="default: the launcher's")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so long")
    parser.add_argument("--list", action="store_true", help="show the plan, train nothing")
    parser.add_argument("--folder", type=Path, default=Path("runs/results"), help="of run folders")
    parser.add_argument("--output", type=Path, default=machine.RESULTS / "games", metavar="DIR")
    parser.add_argument("--zoo", type=Path, default=REPOSITORY / "zoo", metavar="DIR")
    parser.add_argument("--save-every", type=float, default=300.0, metavar="SECONDS")
    arguments = parser.parse_args(words[:end])
    arguments.flags = words[end + 1 :]
    return arguments


def main() -> int:
    """Work on the plan until it is finished or a stop is due; 1 if a run failed."""
    arguments = parse(sys.argv[1:])
    goals = plan(arguments.games, arguments.seeds, arguments.env_steps)
    results = Results(arguments.folder, arguments.output, arguments.zoo)
    if arguments.list:
        print("\n".join(table(results, goals)))
        return 0
    stop = Stop(arguments.minutes)
    failed: set[str] = set()
    for goal in goals:
        held = rundir.is_held(results.folder / goal.run)  # also by a launcher started by hand
        if stop.is_due or held or goal.run in failed or results.is_finished(goal):
            continue
        if not work(results, goal, arguments, stop):
            failed.add(goal.run)
    print("\n".join(table(results, goals)))
    return 128 + stop.signal if stop.signal else int(bool(failed))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (BrokenPipeError, A3CError) as error:
        sys.exit(console.refuse("benchmarks.results", error))
