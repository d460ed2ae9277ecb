"""Train many runs with different settings or seeds: `launch_cluster.py sweep FILE.toml`.

Each trial is a run of the launcher in child mode, with a folder of its own. A sweep that was
interrupted goes on where it stopped: trials that have ended are skipped, the others resumed.
"""

import argparse
import contextlib
import csv
import difflib
import io
import itertools
import logging
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from a3c.cluster.which_task import expand_ranges
from a3c.config import Config, command_line
from a3c.config.options import OPTIONS, coerce, flat, shown
from a3c.errors import EXIT_FATAL, EXIT_OK, EXIT_USAGE, UserError, reason_of
from a3c.keeper.spawn import die_with
from a3c.play import locate
from a3c.process.console import count, program, relative_path, table
from a3c.process.process_records import read_json, write_atomically
from a3c.process.signals import not_ignored
from a3c.run import rundir
from a3c.run.rundir import REPOSITORY, RUNS, RunDir
from a3c.watch.snapshot import roughly

log = logging.getLogger(__name__)

KEYS: dict[str, tuple[type, range | None, str]] = {  # type, allowed values, words for both
    "preset": (str, None, "the name of one"),
    "trials": (int, range(1, 10_001), "1 to 10000"),
    "draw_seed": (int, range(2**32), "0 to 4294967295"),
    "optuna": (bool, None, "true or false"),
    "fixed": (dict, None, "a table of settings, for example seed = 1"),
    "vary": (dict, None, "a table of settings, for example seed = [1, 2, 3]"),
}
Values = dict[str, Any]


@dataclass(frozen=True)
class Sweep:
    preset: str = "auto"
    trials: int = 1  # draws of the ranges
    draw_seed: int = 1
    optuna: bool = False  # whether Optuna chooses the draws, by the results so far
    fixed: Values = field(default_factory=dict)
    lists: dict[str, list[Any]] = field(default_factory=dict)
    ranges: dict[str, Values] = field(default_factory=dict)

    def settings(self) -> Iterator[Values]:
        """The varied settings of all trials: each combination of the lists with each draw."""
        rng = random.Random(self.draw_seed)  # noqa: S311
        for _ in range(self.trials if self.ranges else 1):
            draw: Values = {}
            for name, limits in self.ranges.items():
                low, high = limits["low"], limits["high"]
                is_whole = OPTIONS[name].kind is int
                if is_whole:  # rounded, so the first and the last number get as much as the others
                    low, high = low - 0.5, high + 0.5
                if limits["log"]:
                    value = math.exp(rng.uniform(math.log(low), math.log(high)))
                else:
                    value = rng.uniform(low, high)
                # Four digits after those that both limits share.
                same = math.log10(max(abs(low), abs(high)) / (high - low))
                short = float(f"{value:.{4 + max(0, math.floor(same))}g}")
                found = round(value) if is_whole else short
                draw[name] = min(max(found, limits["low"]), limits["high"])
            for values in itertools.product(*self.lists.values()):
                yield {**draw, **dict(zip(self.lists, values, strict=True))}


@dataclass
class Trial:
    path: Path
    values: Values  # the varied settings
    summary: Values = field(default_factory=dict)  # empty until it has ended
    is_refused: bool = False  # its settings don't go together

    @property
    def row(self) -> Values:
        evaluation = self.summary.get("evaluation") or {}
        result = {name: self.summary.get(name, "") for name in ("solved", "env_steps", "wall_s")}
        mean = evaluation.get("mean", self.summary.get("mean_return_100"))
        return {"trial": self.path.name, **self.values, **result, "mean_return": mean}

    @property
    def rank(self) -> tuple[float, float]:
        """Sorts the best first: solved ones by env steps, then the others by mean return."""
        mean = self.row["mean_return"]
        if self.summary.get("solved"):
            return 0.0, float(self.summary["env_steps"])
        return (1.0, -float(mean)) if isinstance(mean, int | float) else (2.0, 0.0)


def read(path: Path) -> Sweep:
    source = str(path)
    tables = command_line.parse_file(path, source)
    if not isinstance(tables, dict):  # a JSON file can hold a list
        raise UserError(f"{source}: give a TOML file with [fixed] and [vary]")
    for key, value in tables.items():
        if key not in KEYS:
            raise UserError(f"{source}: unknown key {key!r}: {command_line.suggest(key, KEYS)}")
        kind, limits, allowed = KEYS[key]
        if type(value) is not kind or (limits and value not in limits):
            raise UserError(f"{source}: {key} = {shown(value)} is refused: give {allowed}")
    if tables.get("preset", "auto") not in ("auto", "none"):
        command_line.read_preset(tables["preset"])
    fixed, vary = tables.pop("fixed", {}), tables.pop("vary", {})
    if not vary:
        raise UserError(f"{source}: give a table [vary] of settings, for example seed = [1, 2, 3]")
    unknown = [name for name in (*fixed, *vary) if name not in OPTIONS]
    if unknown:
        near = difflib.get_close_matches(unknown[0].replace("-", "_"), OPTIONS, n=1)
        remedy = f"did you mean {near[0]}?" if near else "give one of the verb config, with _ for -"
        raise UserError(f"{source}: unknown setting {unknown[0]}: {remedy}")
    fixed = {name: _checked(name, value, source) for name, value in fixed.items()}
    lists = {n: v for n, v in vary.items() if isinstance(v, list) and v}
    lists = {name: [_checked(name, one, source) for one in many] for name, many in lists.items()}
    ranges = {name: _range(name, vary[name], source) for name in vary if name not in lists}
    if tables.get("optuna") and (name := next((n for n in lists if OPTIONS[n].is_list), None)):
        raise UserError(f"{source}: optuna can't choose {name}, a list itself: put it in [fixed]")
    return Sweep(**tables, fixed=fixed, lists=lists, ranges=ranges)


def _checked(name: str, value: Any, source: str) -> Any:
    return coerce(OPTIONS[name], value, f"{source}: {name}")


def _range(name: str, value: Any, source: str) -> Values:
    refused = f"{source}: {name} = {shown(value)} is refused: give"
    is_range = isinstance(value, dict) and {"low", "high"} <= set(value) <= {"low", "high", "log"}
    if not is_range or type(value.get("log", False)) is not bool:
        raise UserError(f"{refused} a list, or a range {{ low = 1e-4, high = 1e-2, log = true }}")
    low, high = (_checked(name, value[end], source) for end in ("low", "high"))
    is_log = value.get("log", False)
    option = OPTIONS[name]
    is_number = option.kind in (int, float) and not option.is_list and None not in (low, high)
    if not is_number or not low < high or (is_log and low <= 0):
        raise UserError(f"{refused} numbers, low below high, and above 0 with log")
    return {"low": low, "high": high, "log": is_log}


def seeds(text: str) -> list[int]:
    """The seeds of a flag: `0-9`, `3` or `1,2,5`; raises UserError."""
    try:
        return list(dict.fromkeys(map(int, expand_ranges(text))))
    except UserError:
        what = f"--seeds {text or repr(text)} is refused"
        raise UserError(f"{what}: give for example 0-9 or 1,2,5") from None


class Trainer:
    """Trains trials as runs of the launcher; Ctrl-C stops those that run in order."""

    def __init__(self, sweep: Sweep, flags: Sequence[str], again: str, folder_flag: str) -> None:
        self._sweep, self._flags, self._again, self._folder_flag = sweep, flags, again, folder_flag
        # For a resumed run, which has its settings: only the flags that say how to start it.
        _, self._start_flags = command_line.make_parser("", "").parse_known_args(flags)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.signal = 0  # the last one
        self.began_at = time.monotonic()
        self.num_trained = 0  # trials that this command has run
        self.num_unfinished = 0  # trials that this command leaves unfinished

    def checked_settings(self, folder: Path) -> list[Values]:
        """The varied settings of all trials; empty ones if Optuna chooses them."""
        if self._sweep.optuna:
            return [{}] * self._sweep.trials
        settings = list(self._sweep.settings())
        for number, values in enumerate(settings):
            self.wanted(Trial(folder / f"{number:03}", values))
        return settings

    def stop(self, number: int, _frame: object = None) -> None:
        """End the runs in order, and start no more; a second signal ends them at once."""
        self.signal = number
        for process in self._processes:
            if process.poll() is None:
                # A launcher counts two SIGTERM within a second as one, but not two SIGINT.
                process.send_signal(number if number == signal.SIGINT else signal.SIGTERM)

    def train(self, trial: Trial) -> None:
        """Train a trial unless it has ended; sets its summary once it has.

        A trial that was interrupted during its closing games plays them when it is resumed. One
        whose settings don't go together is only marked.
        """
        try:
            self.wanted(trial)
        except UserError as error:  # Optuna drew it
            trial.is_refused = True
            self.num_unfinished += 1
            log.error("%s", error)
            return
        run, output = RunDir(trial.path), trial.path.with_suffix(".log")
        is_new, games = not run.config.exists(), 0
        if not is_new:
            games = self._check_same(trial).run.evaluation_episodes
        summary = read_json(dict, run.summary) or {}
        has_ended = summary.get("state") == "done" and (summary.get("evaluation") or not games)
        if not has_ended and not self.signal:
            chosen = (f"{name} {command_line.plain(v)}" for name, v in trial.values.items())
            log.info("%s: %s", trial.path.name, ", ".join(chosen))
            written = run.summary.stat().st_mtime_ns if run.summary.exists() else 0
            code = self._launch(trial, output, is_new=is_new)
            self.num_trained += 1
            has_begun = run.summary.exists() and run.summary.stat().st_mtime_ns != written
            if code == EXIT_USAGE and not has_begun:
                line = output.read_text(errors="replace").splitlines()[-1]
                if not trial.path.exists():  # nothing was written but this
                    output.unlink()
                    with contextlib.suppress(OSError):  # it isn't empty
                        output.parent.rmdir()
                line = line.removeprefix(f"{program('launch_cluster.py')}: ")
                raise UserError(f"{trial.path.name}: {line}")
            summary = read_json(dict, run.summary) or {}
        if summary.get("state") == "done":
            trial.summary = summary
            return
        self.num_unfinished += 1
        if summary.get("state") == "failed":
            log.error("%s failed: see %s; %s tries it again", trial.path.name, output, self._again)
        else:
            log.warning("%s has not ended: %s goes on with it", trial.path.name, self._again)

    def _check_same(self, trial: Trial) -> Config:
        """The settings of a trial that was begun; refuses a folder where these are others."""
        wanted, given = self.wanted(trial)
        found, settings, differing = rundir.read_config(RunDir(trial.path)), flat(wanted), []
        for name, there in flat(found).items():
            here = settings[name]
            if name == "workers" and name not in given:
                continue  # by default as many as this machine has cores
            if name == "start_from" and there and here:
                try:  # a trial notes the checkpoint that it took from this source
                    source = locate.find_checkpoint(here)
                except UserError:  # a trial that has not begun yet is refused for this reason
                    continue
                if Path(there).is_relative_to(source.run.path if source.run else source.path):
                    continue
            if there != here:
                values = command_line.plain(there), command_line.plain(here)
                differing.append(f"{name} {values[0]}, not {values[1]}")
        if differing:
            more = f"; and {len(differing) - 3} more" if len(differing) > 3 else ""
            words = "; ".join(differing[:3]) + more
            other = f"another {self._folder_flag}, or the settings as they were"
            raise UserError(f"{trial.path} was trained with {words}: give {other}")
        return found

    def wanted(self, trial: Trial) -> tuple[Config, set[str]]:
        """The settings that a new trial would have, and the names of those that are given."""
        parser = command_line.make_parser("", "")
        namespace, _ = parser.parse_known_args(self._settings(trial))  # without how to start
        layers = [layer for _, layer in command_line.sources(namespace)[0]]
        try:
            return command_line.merge(layers), set().union(*layers)
        except UserError as error:
            raise UserError(f"{trial.path.name}: {error}") from None

    def _settings(self, trial: Trial) -> list[str]:
        values = {**self._sweep.fixed, **trial.values}
        return [f"--preset={self._sweep.preset}", *command_line.flags_of(values), *self._flags]

    def _launch(self, trial: Trial, output: Path, *, is_new: bool) -> int:
        chosen = self._settings(trial) if is_new else ["--resume", *self._start_flags]
        command = [sys.executable, str(REPOSITORY / "launch_cluster.py"), "--mode", "child"]
        with rundir.refusing(output.parent, self._folder_flag):
            output.touch(mode=0o600)
            file = output.open("a")
        with file:
            process = subprocess.Popen(
                [*command, f"--run-dir={trial.path}", *chosen],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches it through `stop` only, once
                preexec_fn=partial(die_with, os.getpid()),
            )
            self._processes.append(process)
            if self.signal:  # it came while the process was starting
                process.terminate()
            return process.wait()


def run(
    sweep: Sweep,
    folder: Path,
    flags: Sequence[str],
    at_once: int,
    again: str = "the same command",
    folder_flag: str = "--output",
    *,
    is_new: bool = False,
) -> int:
    """Train all trials, `at_once` of them at a time; returns the exit code.

    `again` names the command that continues unfinished trials, `folder_flag` the flag that gives
    the folder. If `is_new`, this makes the folder; FileExistsError if another process was first.
    """
    if not 1 <= at_once <= 1000:
        raise UserError(f"--at-once {at_once} is refused: give 1 to 1000")
    trainer = Trainer(sweep, flags, again, folder_flag)
    settings = trainer.checked_settings(folder)
    _make(folder, folder_flag, is_new=is_new)
    study = _Study(sweep, folder, at_once) if sweep.optuna else None
    for number in not_ignored(signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, trainer.stop)
    trials: list[Trial] = []
    turn = threading.Lock()

    def work(_: Values) -> None:
        if trainer.signal:
            return
        try:
            with turn:
                number = len(trials)  # Optuna counts in this order, not in that of the pool
                values = study.choose(number) if study else settings[number]
                trial = Trial(folder / f"{number:03}", values)
                trials.append(trial)
            trainer.train(trial)
            with turn:
                _report(trial, trials, len(settings), trainer, at_once)
                # After a signal its last games may be missing: the next command tells the result.
                if study and not trainer.signal and (trial.summary or trial.is_refused):
                    study.tell(number, trial)
        except BaseException:
            trainer.stop(signal.SIGTERM)
            raise

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(work, settings))
    if not trials:  # the signal came before the first one
        return 128 + trainer.signal
    trials.sort(key=lambda trial: (trial.rank, trial.path.name))  # equal ones by number
    _write(trials, folder / "sweep.csv")
    if trainer.signal != signal.SIGHUP:  # the terminal is closed
        _show(trials, folder)
    if trainer.signal:
        return 128 + trainer.signal
    return EXIT_OK if all(trial.summary for trial in trials) else EXIT_FATAL


def _make(folder: Path, flag: str, *, is_new: bool) -> None:
    if is_new and not rundir.reserve(folder):
        raise FileExistsError(folder)
    with rundir.refusing(folder, flag):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def _report(
    trial: Trial, trials: Sequence[Trial], number: int, trainer: Trainer, at_once: int
) -> None:
    if not trial.summary:
        return
    row = trial.row
    word = "solved" if row["solved"] else "done"
    steps, mean = f"{row['env_steps']:,}", _cell(row["mean_return"])
    log.info("%s: %s after %s env steps, mean return %s", trial.path.name, word, steps, mean)
    ended = sum(bool(trial.summary) for trial in trials)
    left, left_over = "", number - ended - trainer.num_unfinished
    if trainer.num_trained and left_over:
        each_s = (time.monotonic() - trainer.began_at) / max(trainer.num_trained, at_once)
        left = f", about {roughly(each_s * left_over)} left"
    log.info("%d of %s%s", ended, count(number, "trial"), left)


def _write(trials: Sequence[Trial], file: Path) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(trials[0].row), lineterminator="\n")
    writer.writeheader()
    for row in (trial.row for trial in trials):
        lists = {k: command_line.plain(v) for k, v in row.items() if isinstance(v, tuple | dict)}
        writer.writerow(row | lists)
    try:
        write_atomically(file, text.getvalue())
    except OSError as error:
        log.error("%s can't be written (%s): make room, and give the command again", file, error)


def _show(trials: Sequence[Trial], folder: Path) -> None:
    """Print the table, the best trial first, and draw the trials that have ended."""
    titles = [name.replace("_", " ") for name in trials[0].row]
    rows = [titles, *(list(map(_cell, trial.row.values())) for trial in trials)]
    lines = [f"{folder}: the best first", *table(rows, num_left=0)]
    print("\n".join(lines), flush=True)  # before what plot.py prints
    if played := [relative_path(trial.path) for trial in trials if trial.summary]:
        command = [sys.executable, str(REPOSITORY / "plot.py"), *played, "--what", "return"]
        command.append(f"--output={folder}")
        subprocess.run(command, stdin=subprocess.DEVNULL, check=False)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.9g}"
    return f"{value:,}" if isinstance(value, int) else command_line.plain(value)


class _Study:
    """Optuna, which chooses the draws by the results so far; its storage is in the folder."""

    def __init__(self, sweep: Sweep, folder: Path, at_once: int) -> None:
        try:
            import optuna
        except ImportError:
            raise UserError("this sweep needs optuna: run `.venv/bin/pip install optuna`") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        kinds = optuna.distributions
        self._choices: dict[str, Any] = {
            name: kinds.CategoricalDistribution(values) for name, values in sweep.lists.items()
        }
        for name, limits in sweep.ranges.items():
            is_whole = OPTIONS[name].kind is int
            kind = kinds.IntDistribution if is_whole else kinds.FloatDistribution
            self._choices[name] = kind(**limits)
        file = folder / "optuna.db"
        other = f"take {file} away, or give another --output"
        try:
            self._study = optuna.create_study(
                # Older versions named it "sweep", and its results have another scale.
                study_name="ranks",
                storage=f"sqlite:///{file.absolute()}",
                load_if_exists=True,
            )
        except Exception as error:  # of SQLAlchemy
            raise UserError(f"{file} can't be used ({reason_of(error)}): {other}") from None
        if any(trial.distributions != self._choices for trial in self._study.trials):
            raise UserError(f"{file} has draws from other lists or ranges: {other}")
        seed = sweep.draw_seed + len(self._study.trials)
        self._study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=at_once > 1)

    def choose(self, number: int) -> Values:
        """The settings of a trial, the same ones again after an interruption."""
        if number < len(known := self._study.get_trials(deepcopy=False)):
            return dict(known[number].params)
        return dict(self._study.ask(self._choices).params)

    def tell(self, number: int, trial: Trial) -> None:
        """Report a result once, as a number that is lower for a better rank."""
        from optuna.trial import TrialState

        kind, value = trial.rank
        # Solved trials get the large offset, which costs digits; most trials are unsolved.
        result = None if trial.is_refused else value + (kind - 1) * 1e12
        state = TrialState.FAIL if trial.is_refused else None
        self._study.tell(number, result, state, skip_if_finished=True)


def act(arguments: argparse.Namespace) -> int:
    folder = arguments.output or RUNS / arguments.file.stem
    return run(read(arguments.file), folder, (), arguments.at_once)
