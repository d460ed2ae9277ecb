"""Start an A3C cluster and supervise it to the end.

python launch_cluster.py --workers 16
python launch_cluster.py --env-id CartPole-v1 --workers 2 --mode child
python launch_cluster.py status | watch | attach | logs | stop | restart | list
"""

import argparse
import contextlib
import dataclasses
import difflib
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from a3c.cluster import plan
from a3c.cluster.hostfile import Placement
from a3c.config import Config, EnvConfig, command_line
from a3c.config.options import flat, shown
from a3c.errors import EXIT_OK, A3CError, UserError
from a3c.launch import catalogue, hosts, keep, preflight, run_summary, sweep, verbs
from a3c.launch.supervisor import ChildKeepers, Interruption
from a3c.play import locate
from a3c.process import console
from a3c.process.signals import end_children, run_command, undo_changes
from a3c.run import callbacks, checkpoint, rundir
from a3c.run.rundir import RunDir

log = logging.getLogger("a3c")

PROG = console.program("launch_cluster.py")
USAGE = f"{PROG} [start] [setting ...]\n       {PROG} VERB [argument ...]"
DESCRIPTION = "\n".join(
    [
        "Train an A3C cluster, or look after one that was started:",
        *(f"  {name:12}{verb.help}" for name, verb in verbs.VERBS.items() if verb.help),
        f"  {'keep':12}supervise some processes of a run on many hosts; `keep --help`",
    ]
)
LAYOUT: dict[str, Any] = {"usage": USAGE, "formatter_class": argparse.RawDescriptionHelpFormatter}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say how to start; the settings say what to train."""
    add = parser.add_argument_group("launch").add_argument
    path, switch = command_line.parse_path, argparse.BooleanOptionalAction
    add(
        "--mode",
        choices=("auto", "tmux", "child", "compose"),
        default="auto",
        help="tmux: in panes; child: here, in the foreground; auto: tmux on a terminal; "
        "compose: only print a compose file",
    )
    add("--run-dir", type=path, metavar="DIR", help="default: runs/<game>-<time>")
    add("--resume", action="store_true", help="go on with --run-dir, or with the newest run")
    keeps_best = "a process that plays new checkpoints and keeps the best"
    add("--evaluator", action=switch, help=keeps_best)
    add("--tensorboard", action=switch, help="TensorBoard on a free port of 127.0.0.1")
    add("--hosts", type=path, metavar="FILE", help="train on the hosts of this TOML file, over ssh")
    add("--seeds", metavar="N-M", help="train a run for each seed, such as 0-9, and compare")
    add("--at-once", type=int, metavar="N", help="with --seeds: runs at a time (1)")
    add("--dry-run", action="store_true", help="show what would be started")
    add("--json", action="store_true", help="with --dry-run: as JSON")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    console.prepare()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a daemon's child may inherit that it is ignored
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    log.setLevel(logging.INFO)  # even if an environment sets another level for all loggers
    try:
        if arguments[:1] == ["complete"]:
            return complete(os.environ.get("COMP_LINE", ""), os.environ.get("COMP_POINT", ""))
        if arguments and arguments[0] in verbs.VERBS:
            code = verbs.run(PROG, arguments)
        elif arguments[:1] == ["keep"]:
            code = keep.keep(arguments[1:], f"{PROG} keep", _check_environment)
        elif arguments and not arguments[0].startswith("-") and arguments[0] != "start":
            raise UserError(_unknown_verb(arguments[0]))
        else:
            code = start(arguments[1:] if arguments[:1] == ["start"] else arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (OSError, A3CError) as error:
        return console.refuse(PROG, error)


def _unknown_verb(word: str) -> str:
    known = ["start", *(name for name, verb in verbs.VERBS.items() if verb.help), "keep"]
    meant = {
        "start": "train run launch go begin fit",
        "status": "ps info state show",
        "list": "ls runs",
        "stop": "kill end quit down halt terminate",
        "logs": "tail log",
        "watch": "dashboard monitor top",
        "--resume": "resume continue",
        "--help": "help",
        "--version": "version",
        "--tensorboard": "tensorboard",
        console.command("evaluate.py"): "evaluate eval test play score record",
        console.command("plot.py"): "plot draw curves",
        console.command("model.py"): "model network",
    }
    near = [flag for flag, others in meant.items() if word.lower() in others.split()]
    near = near or difflib.get_close_matches(word.lower(), known, n=2)
    remedy = f"did you mean {' or '.join(near)}?" if near else f"give one of {', '.join(known)}"
    return f"unknown verb {word}: {remedy}"


def complete(line: str, point: str) -> int:
    """Print the completions of a line up to the cursor; the shell calls this, see `completion`."""
    shown = [name for name, verb in verbs.VERBS.items() if verb.help]
    parsers = {name: verbs.make_parser(PROG, name) for name in shown}
    parsers["start"] = command_line.make_parser(PROG, DESCRIPTION, add_arguments, everything=True)
    breaks = os.environ.get("COMP_WORDBREAKS", "=:")
    for word in catalogue.complete(line[: int(point or 0)], parsers, breaks):
        print(word)
    return EXIT_OK


def _check_environment(settings: EnvConfig) -> None:
    with undo_changes(), end_children(), console.stdout_apart():
        import envs  # imports Gymnasium: too slow for the verbs

        envs.check(settings)


def start(arguments: list[str]) -> int:
    config, chosen, changes = _parse(arguments)
    if not arguments:
        cartpole = f"{console.command('launch_cluster.py')} --env-id CartPole-v1"
        log.info("this starts %s; for CartPole, a minute's work: %s", config.env.env_id, cartpole)
    path = chosen.run_dir or rundir.new_path(config.env.env_id, time.time())
    if chosen.seeds is not None:
        return _train_seeds(arguments, chosen, path)
    if chosen.mode == "compose":
        return keep.compose(config, path.resolve().name, chosen, _check_environment)
    config = locate.with_source(config, RunDir(path))
    config, placement = hosts.place(config, chosen)
    run = rundir.labelled(path, resume=chosen.resume)
    planned = _plan(config, path, run, chosen, placement)
    if chosen.dry_run:
        print(planned.show(as_json=chosen.json))
        return EXIT_OK
    if placement:
        hosts.check(planned, config)
    in_tmux = _wants_tmux(chosen, planned, run)
    if not chosen.run_dir and not rundir.reserve(path):  # taken within the same second
        return start(arguments)
    with rundir.hold(path):
        rundir.check_free(path, resume=chosen.resume)  # another launcher may have been first
        preflight.check_left_over(run)
        rundir.create(path, config, chosen.preset, resume=chosen.resume, label=run.label)
        with rundir.refusing(path):
            planned.save(run)
            hosts.save_copy(run, placement)
            for record in (path / "processes").glob("*.json"):  # old ones would be trusted
                record.unlink(missing_ok=True)
        log.info("%s", run_summary.opening(run, config, chosen.preset, planned))
        if changes:
            log.info("changed since then: %s", ", ".join(changes))
        if not in_tmux:
            keepers = ChildKeepers(run, planned.processes)
            with Interruption() as interruption:
                return run_summary.supervise(planned, keepers, run, config, interruption)
        from a3c.launch import tmux

        return tmux.start(planned, run, script=Path(__file__).resolve())


def _parse(arguments: list[str]) -> tuple[Config, argparse.Namespace, list[str]]:
    """The settings, the flags, and the settings that `--resume` changes.

    With `--resume`, the settings of the run are the base, and its directory and preset are taken.
    """
    parser = command_line.Parser(prog=PROG, add_help=False)
    add_arguments(parser)
    parser.add_argument("--max-env-steps", default="")
    known, _ = parser.parse_known_args(arguments)
    resumed = base = None
    if known.resume:
        after = arguments[arguments.index("--resume") + 1 :][:1]
        if after and not after[0].startswith("-"):
            raise UserError(f"--resume {after[0]}: give --resume --run-dir {after[0]}")
        resumed = rundir.find(str(known.run_dir) if known.run_dir else None)
        base = command_line.read_file(resumed.config, str(resumed.config))
        arguments = [*arguments, *_more_env_steps(known.max_env_steps, resumed)]
    config, chosen = command_line.parse_config(
        arguments, PROG, DESCRIPTION, add_arguments, base=base, **LAYOUT
    )
    if chosen.json and not chosen.dry_run:
        raise UserError("--json is for --dry-run: give that too, or use `status --json`")
    if chosen.at_once is not None and chosen.seeds is None:
        raise UserError("--at-once is for --seeds: give that too, or leave it out")
    needs = {"--patience": config.run.patience, "--render": config.run.render}
    if chosen.evaluator is False and (flag := next((f for f, given in needs.items() if given), "")):
        raise UserError(f"--no-evaluator with {flag}, which needs it: leave one of them out")
    if resumed is None or base is None:
        return config, chosen, []
    chosen.run_dir, chosen.preset = resumed.path, rundir.recorded(resumed, "preset")
    with contextlib.suppress(UserError):  # TensorBoard and evaluator run again if they did before
        before = plan.Plan.load(resumed)
        if chosen.tensorboard is None:
            chosen.tensorboard = bool(before.of_role("tensorboard"))
        if chosen.evaluator is None:
            chosen.evaluator = bool(before.of_role("evaluator"))
    return config, chosen, _changes(command_line.merge([base]), config, resumed)


def _more_env_steps(text: str, run: RunDir) -> list[str]:
    """The flag for `--max-env-steps +N`: N more than the newest checkpoint has."""
    before_plus, plus, more = text.rpartition("+")
    with contextlib.suppress(ValueError, OverflowError):  # the parser refuses these
        if plus and not before_plus and (number := int(float(more))) > 0:
            newest = checkpoint.newest_valid(run.checkpoints)
            return [f"--max-env-steps={number + (newest[1].step if newest else 0)}"]
    return []


def _changes(before: Config, config: Config, resumed: RunDir) -> list[str]:
    """The changed settings, and annealed values that change with them."""
    old, new = flat(before), flat(config)
    changes = [f"{n} {shown(old[n])} -> {shown(new[n])}" for n in new if new[n] != old[n]]
    if not changes:
        return changes
    from a3c.learn import schedules

    at, end = max(checkpoint.by_step(resumed.checkpoints), default=0), before.windows["anneal"][1]
    kept = dataclasses.replace(config.learning, anneal_steps=end)
    configs = before, config, dataclasses.replace(config, learning=kept)
    was, now, then = (schedules.after(one, at)._asdict() for one in configs)
    for name in was:
        setting = "epsilon_greedy" if name == "epsilon" else name
        said = new[setting] if new[setting] != old[setting] else was[name]
        if now[name] != said:
            is_kept = then[name] == was[name] != now[name]
            remedy = f" (--anneal-steps {end} keeps it)" if is_kept else ""
            value = f"{was[name]:g} -> {now[name]:g}" if was[name] != now[name] else "as it was"
            changes.append(f"{name} at env step {at:,}: {value}{remedy}")
    return changes


def _train_seeds(arguments: list[str], chosen: argparse.Namespace, path: Path) -> int:
    flags = {"--resume": chosen.resume, "--dry-run": chosen.dry_run, "--hosts": chosen.hosts}
    flags[f"--mode {chosen.mode}"] = chosen.mode in ("tmux", "compose")
    for flag in filter(flags.get, flags):
        raise UserError(
            f"--seeds with {flag}: it trains here, and the same command goes on: leave {flag} out"
        )
    if hasattr(chosen, "config.seed"):
        raise UserError("--seeds with --seed: the runs have those of --seeds: leave --seed out")
    own = command_line.Parser(prog=PROG, add_help=False)
    for flag in ("--seeds", "--run-dir", "--mode", "--at-once"):
        own.add_argument(flag)
    _, others = own.parse_known_args(arguments)
    vary = sweep.Sweep(lists={"seed": sweep.seeds(chosen.seeds)})
    at_once = 1 if chosen.at_once is None else chosen.at_once
    again = "the same command"
    is_new = chosen.run_dir is None
    if is_new:
        again += f" with --run-dir {console.relative_path(path)}"
    try:
        return sweep.run(vary, path, others, at_once, again, "--run-dir", is_new=is_new)
    except FileExistsError:  # taken within the same second
        return start(arguments)


def _plan(
    config: Config, path: Path, run: RunDir, chosen: argparse.Namespace, placement: Placement | None
) -> plan.Plan:
    """The processes of the run, planned before anything is written.

    Settings that can't work are refused; unused flags and possible problems are only warnings.
    """
    from a3c.env import atari

    with undo_changes(), end_children(), console.stdout_apart():  # a plan may be printed as JSON
        import envs

        observations, actions = envs.check(config.env)
        for own in config.run.callback:
            callbacks.find(**own)
    preflight.check_left_over(run)
    rundir.check_free(path, resume=chosen.resume)
    tried = config
    if chosen.resume:
        if hasattr(chosen, "config.start_from") and checkpoint.by_step(run.checkpoints):
            why = "the run goes on from its own checkpoint"
            raise UserError(f"--start-from with --resume: {why}: leave it out, or start a new run")
        rundir.check_resumable(path, config)
        # A resumed run doesn't need the source of its weights, which may be gone.
        tried = dataclasses.replace(config, run=dataclasses.replace(config.run, start_from=None))
    preflight.check_network(tried, observations, actions)
    danger = preflight.isolation_warning(config.cluster.isolation, across_hosts=bool(placement))
    isolated = danger is None
    cluster = placement.cluster if placement else plan.choose_addresses(config, isolated=isolated)
    planned = plan.make(
        config,
        run,
        cluster,
        isolated=isolated,
        evaluator=bool(chosen.evaluator),
        board=(plan.LOOPBACK, plan.choose_board_port(cluster)) if chosen.tensorboard else None,
        placement=placement,
    )
    env_id = config.env.env_id
    game = atari.find(env_id)
    warnings = command_line.unused_flags(
        chosen,
        config,
        is_atari=game is not None,
        has_box_actions=type(actions).__name__ == "Box",
    )
    warnings += preflight.warnings(planned, config, preflight.measure_machine(run.path))
    task = game.env_id if game else env_id
    is_new = chosen.preset and not chosen.resume
    if is_new and all(
        command_line.is_for_another_task(chosen.preset, name) for name in (env_id, task)
    ):
        warnings.append(
            f"preset {chosen.preset} is for another task than {env_id}: without "
            "--preset the one that fits is taken"
        )
    has_settings = chosen.preset or chosen.config or chosen.resume
    if game and not has_settings and command_line.preset_for(env_id) is None:
        fitting = command_line.preset_for(task)
        warnings.append(f"no preset is taken for {env_id} by itself: give --preset {fitting}")
    for line in (*warnings, *([danger] if danger else [])):
        log.warning("warning: %s", line)
    return planned


def _wants_tmux(chosen: argparse.Namespace, planned: plan.Plan, run: RunDir) -> bool:
    """Whether the run goes into tmux; UserError if the user asks for tmux and it can't."""
    if chosen.mode == "child" or (chosen.mode == "auto" and not sys.stdout.isatty()):
        return False
    from a3c.launch import tmux  # imports libtmux, which only tmux mode needs

    if chosen.mode == "auto" and not tmux.is_usable():
        return False
    tmux.check(planned, run)
    return True


def command() -> int:
    """The entry point of the installed command `a3c`."""
    return run_command(main)


if __name__ == "__main__":
    sys.exit(command())
