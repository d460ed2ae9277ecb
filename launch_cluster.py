"""Start an A3C cluster on this machine, and see it through.

python launch_cluster.py --workers 16
python launch_cluster.py --env-id CartPole-v1 --workers 2 --mode child
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import envs
from a3c import options, plan, report, rundir, supervisor
from a3c.config import Config
from a3c.errors import EXIT_OK, A3CError
from a3c.plan import Plan
from a3c.rundir import REPOSITORY, RunDir

log = logging.getLogger("a3c")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say how to start, beside what to train."""
    group = parser.add_argument_group("launch")
    group.add_argument(
        "--mode", choices=("auto", "child"), default="auto", help="child: here, in the foreground"
    )
    group.add_argument("--run-dir", type=Path, metavar="DIR", help="default: runs/<game>-<time>")
    group.add_argument(
        "--resume", action="store_true", help="go on with --run-dir, or with the newest run"
    )
    group.add_argument("--dry-run", action="store_true", help="show what would be started")
    group.add_argument("--json", action="store_true", help="with --dry-run: as JSON")


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, plan, start, wait, report; the exit code of the run."""
    arguments = _with_resumed_config(list(sys.argv[1:] if argv is None else argv))
    config, chosen = options.parse_config(
        arguments, "launch_cluster.py", "Train an A3C cluster on this machine.", add_arguments
    )
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        path = chosen.run_dir or rundir.new_path(config.env.env_id, time.time())
        envs.check(config.env)
        rundir.check_free(path, resume=chosen.resume)
        if chosen.resume:
            rundir.check_resumable(path, config)
        planned = plan.make(config, RunDir(path.absolute()), plan.choose_ports(config))
        if chosen.dry_run:
            return _show(planned, as_json=chosen.json)
        return _start(planned, path, config, chosen)
    except A3CError as error:
        sys.stderr.write(f"launch_cluster.py: {error}\n")
        return error.exit_code


def _with_resumed_config(arguments: list[str]) -> list[str]:
    """`--resume` goes on with the run's own configuration; flags still win over it."""
    parser = options.Parser(prog="launch_cluster.py", add_help=False, allow_abbrev=False)
    add_arguments(parser)
    parser.add_argument("--config", type=Path)
    known, _ = parser.parse_known_args(arguments)
    if not known.resume or known.config:
        return arguments
    try:
        run = rundir.find(str(known.run_dir) if known.run_dir else None)
    except A3CError as error:
        parser.error(str(error))
    where = [] if known.run_dir else ["--run-dir", str(run.path)]
    return [*arguments, *where, "--config", str(run.config)]


def _show(planned: Plan, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps(planned.as_dict(), indent=1))
    else:
        for process in planned.processes:
            print(process.shell())
    return EXIT_OK


def _start(planned: Plan, path: Path, config: Config, chosen: argparse.Namespace) -> int:
    """Run the cluster to its end, then evaluate, draw and sum up."""
    with rundir.hold(path):
        run = rundir.create(path, config, chosen.preset, resume=chosen.resume)
        log.info("%s", report.opening(run, config, chosen.preset))
        progress = report.Progress(run, config, log.info)
        outcome = supervisor.Supervisor(planned, run, progress.poll).run()
        if outcome.failed:
            for line in supervisor.first_error(run, outcome.failed):
                log.error("%s | %s", outcome.failed, line)
            log.error("%s failed with %d", outcome.failed, outcome.exit_code)
        state = "failed" if outcome.failed else "stopped" if outcome.stopped else "done"
        evaluation = _evaluate(run, config) if state == "done" else None
        summary = report.summarise(run, state, evaluation)
        pictures = _plot(run) if state == "done" else []
        log.info("%s", report.closing(run, summary, pictures))
        return outcome.exit_code


def _evaluate(run: RunDir, config: Config) -> dict[str, object] | None:
    """Play whole games with the trained agent in a process of its own, and show the table."""
    if not config.run.evaluation_episodes:
        return None
    command = [sys.executable, str(REPOSITORY / "evaluate.py"), str(run.path), "--json"]
    command += ["--episodes", str(config.run.evaluation_episodes)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def _plot(run: RunDir) -> list[str]:
    command = [sys.executable, str(REPOSITORY / "plot.py"), str(run.path), "--what", "return"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.split() if done.returncode == 0 else []


if __name__ == "__main__":
    sys.exit(main())
