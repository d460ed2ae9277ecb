"""The live view of a run: for `watch`, the cockpit pane and child mode.

It fits the terminal; what is printed at the end fits only its width. Space is given in order of
importance: progress, rates, warnings, then processes (one per line, in columns of cells, or only
the failing ones), then the curve.
"""

import atexit
import contextlib
import os
import select
import sys
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Self, TextIO

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from a3c.cluster.topology import CHIEF
from a3c.errors import A3CError
from a3c.process.console import count
from a3c.run.rundir import RunDir
from a3c.watch import snapshot
from a3c.watch.snapshot import Point, ProcessStatus, Status, duration, printable, roughly, score
from a3c.watch.status import Reader

INTERVAL_S = 1.0


class Dashboard:
    """A context manager that shows a run on a terminal; `poll` refreshes it.

    On exit it prints the last state once more. It shows nothing if the console isn't a terminal.
    The dashboard overwrites other output: pass lines to `write`, as a stream of a log handler does.
    """

    def __init__(self, run: RunDir, console: Console | None = None) -> None:
        self._reader = Reader(run)
        self._curve = snapshot.Curve(run.metrics(CHIEF))
        self.points = self._curve.points
        self._console = console or Console()
        self._notes: deque[str] = deque(maxlen=2)
        self._live: Live | None = None
        self._polled = float("-inf")
        self.status = self._reader.read()

    def refresh(self) -> None:
        """Read the run again; raises UserError if its directory is gone."""
        self._curve.update()
        self.status = self._reader.read(usage=True)

    def write(self, text: str) -> None:
        """Show a line at the bottom; only the last two are shown."""
        self._notes.extend(text.splitlines())

    @property
    def is_on_screen(self) -> bool:
        """Whether the console is a real terminal and ours now, even if colours are forced."""
        console = self._console
        is_real = console.is_terminal and not console.is_dumb_terminal and console.file.isatty()
        return is_real and bool(os.environ.get("TERM")) and self._is_in_foreground()

    def _is_in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self._console.file.fileno()) == os.getpgrp()
        except OSError:  # it isn't the terminal of our session
            return True

    def _is_writable(self) -> bool:
        """Whether the terminal takes output now; not after Ctrl-S, which would make us wait."""
        return bool(select.select([], [self._console.file], [], 0)[1])

    def __enter__(self) -> Self:
        if self.is_on_screen:
            self._live = Live(
                self,
                console=self._console,
                screen=True,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
            self.poll()
        return self

    def __exit__(self, *_: object) -> None:
        live, self._live = self._live, None
        if live is not None:
            with contextlib.suppress(OSError):  # the terminal was closed
                if not self._is_writable():
                    atexit.register(live.stop)  # the end of the run must not wait for it
                    return
                live.stop()
                self._refresh_or_note()
                self._console.print(self)

    def poll(self) -> None:
        """Refresh if a second has passed; quick, and errors of the run become notes."""
        if self._live is None or time.monotonic() - self._polled < INTERVAL_S:
            return
        self._refresh_or_note()
        try:
            if self._is_in_foreground() and self._is_writable():
                self._live.refresh()
        except OSError:  # the terminal was closed; the run continues
            self._live = None

    def _refresh_or_note(self) -> None:
        self._polled = time.monotonic()
        try:
            self.refresh()
        except (A3CError, OSError) as error:
            self.write(str(error))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = self._console.height if self._live else sys.maxsize
        drawn = draw(self.status, self.points, self._notes, options.max_width, rows)
        for line in drawn[:rows]:
            line.no_wrap = True
            line.truncate(options.max_width, overflow="ellipsis")
            if options.ascii_only:
                line.plain = line.plain.translate(_ASCII).encode("ascii", "replace").decode()
            yield line


def watch(run: RunDir, stream: TextIO | None = None) -> Status:
    """Show a run until it ends or Ctrl-C; without a terminal, a line every 5 s, then the status."""
    stream = stream or sys.stdout
    dashboard = Dashboard(run, Console(file=stream))
    printed_at, in_lines = float("-inf"), not dashboard.is_on_screen
    with contextlib.suppress(KeyboardInterrupt), dashboard:
        while not dashboard.status.has_ended and run.config.exists():
            if in_lines:
                dashboard.refresh()
                if time.monotonic() - printed_at >= 5.0:
                    printed_at = time.monotonic()
                    stream.write(snapshot.one_line(dashboard.status, dashboard.points) + "\n")
                    stream.flush()
            time.sleep(INTERVAL_S)
            dashboard.poll()
        if in_lines:
            stream.write("\n".join([*snapshot.lines(dashboard.status), ""]))
    return dashboard.status


DIM = "bright_black"
_ACCENT = "cyan"
_STATE_STYLES = {"starting": "yellow", "running": "green", "restarting": "bold magenta"}
_STATE_STYLES |= {"done": "cyan", "failed": "bold red", "dead": "bold red"}
_STATE_STYLES |= dict.fromkeys(("waiting", "elsewhere", "stopped"), "bright_black")
_LABEL_WIDTH = 11
_BLOCKS = " ▁▂▃▄▅▆▇█"
_MAX_WARNINGS = 4
_GAP = 2
_ASCII = str.maketrans("●○━╸─▁▂▃▄▅▆▇█·↻≤…│", "*o=>-...:::##-r<~|")


def draw(
    status: Status, points: Sequence[Point], notes: Sequence[str], width: int, rows: int
) -> list[Text]:
    """The lines of the view; parts are shortened or left out until they fit into `rows`."""
    top, progress, now = header(status, width), bars(status, points, width), figures(status, width)
    below = warnings(status, width) + [Text(printable(note), DIM) for note in notes]
    gaps = 4 if below else 3
    spark = sparkline(points, width)
    room = rows - len(top + progress + now + spark + below)
    if room < 1:
        spark, room = [], room + len(spark)
    if room < 0:  # the last line stays, as it is the newest note if there is one
        below = [*below[: max(0, len(below) - 1 + room)], *below[-1:]]
    table = (
        process_cells(status.processes, width, room - gaps)
        or process_cells(status.processes, width, room)
        or only_trouble(status.processes, room)[: max(0, room)]
    )
    left = room - len(table)
    chart_rows = min(8, left + len(spark) - gaps - 2)
    if chart_rows >= 3:
        sections, left = [top, progress, now, chart(points, width, chart_rows), table], gaps
    else:
        sections = [top, progress + spark, now, table]
    lines: list[Text] = []
    for section in filter(None, [*sections, below]):
        lines += [Text(), *section] if lines and left >= gaps else section
    return lines


def header(status: Status, width: int) -> list[Text]:
    style = "bold green" if status.solved else f"bold {_STATE_STYLES.get(status.state, '')}"
    right = Text.assemble(("● " + status.word, style))
    if status.wall_s:
        right.append(f"  {duration(status.wall_s)}", DIM)
    left = Text.assemble((" a3c ", f"bold reverse {_ACCENT}"), " ", (printable(status.run), "bold"))
    left.truncate(max(0, width - right.cell_len - 1), overflow="ellipsis")
    space = " " * (width - left.cell_len - right.cell_len)
    num_ps = sum(p.role == "ps" for p in status.processes)
    each = count(status.envs_per_worker, "environment")
    sizes = f"{num_ps} ps · {count(status.workers, 'worker')} x {each}"
    lines = [Text.assemble(left, space, right), Text(f"{printable(status.env_id)} · {sizes}", DIM)]
    if status.tensorboard:
        lines.append(Text(f"TensorBoard {printable(status.tensorboard)}", DIM))
    return lines


def bars(status: Status, points: Sequence[Point], width: int) -> list[Text]:
    """Progress bars with the time left: env steps and, if the run has a goal, the mean return."""
    share = min(1.0, status.global_step / status.max_env_steps)
    words = f"{_short(status.global_step)} of {_short(status.max_env_steps)}"
    if (seconds := snapshot.seconds_to_end(status)) is not None:
        words += f" · {duration(seconds)} left"
    shown = [("env steps", share, words)]
    goal, mean = status.stop_at_return, status.mean_return_100
    if goal is not None:
        share, words = 0.0, f"{score(mean, goal)} of {score(goal, goal)}"
        if mean is not None and mean >= goal:
            share = 1.0
        elif mean is not None:  # from the lowest mean so far
            low = min([mean, *(point.value for point in points)])
            share = (mean - low) / (goal - low)
            if status.state == "running":
                seconds = snapshot.seconds_to_goal(goal, mean, points)
                words += " · no trend" if seconds is None else f" · about {roughly(seconds)}"
        shown.append(("return", share, words))
    bar_width = max(4, width - _LABEL_WIDTH - max(len(words) for _, _, words in shown) - 9)
    texts = []
    for label, share, words in shown:
        full, half = divmod(round(2 * bar_width * share), 2)
        done = "━" * full + "╸" * half
        text = Text.assemble((label.ljust(_LABEL_WIDTH), DIM), (done, _ACCENT))
        text.append("─" * (bar_width - len(done)), DIM)
        text.append(f" {100 * share:4.0f} %  ", "bold")
        progress, dot, left = words.partition(" · ")
        texts.append(text.append(progress).append(dot + left, DIM))
    return texts


def _short(number: int) -> str:
    """A short form of a count: 950, 30.1k, 3.41M, 10M."""
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if number >= size:
            text = f"{number / size:.3g}"
            return f"{number // size}{unit}" if "e" in text else text + unit
    return str(number)


def figures(status: Status, width: int) -> list[Text]:
    load = [p.cpu_percent for p in status.processes if p.role == "ps" and p.cpu_percent is not None]
    busiest = max(load, default=0.0)
    newest = status.checkpoint
    pairs = {
        "return": score(status.mean_return_100, status.stop_at_return),
        "env steps/s": snapshot.rate(status.env_steps_per_s),
        "frames/s": snapshot.rate(status.frames_per_s),
        "updates/s": snapshot.rate(status.updates_per_s),
        "staleness": snapshot.rate(status.staleness),
        "games": snapshot.NOTHING if status.episodes is None else _short(status.episodes),
        "ps load": snapshot.percent(busiest) if load else snapshot.NOTHING,
        "checkpoint": f"{duration(newest.age_s)} ago" if newest else "none yet",
    }
    if status.frames_per_s is None:
        del pairs["frames/s"]
    styles = {"ps load": "bold red" if busiest > 90 else "bold yellow" if busiest > 70 else "bold"}
    widths = [max(len(label), len(value)) + 1 for label, value in pairs.items()]
    while sum(widths) > width and len(pairs) > 1:
        pairs.popitem()
        widths.pop()
    spare = max(0, min(24, (width - sum(widths)) // len(pairs)))
    values, labels = Text(), Text()
    for (label, value), cell in zip(pairs.items(), widths, strict=True):
        values.append(value.ljust(cell + spare), styles.get(label, "bold"))
        labels.append(label.ljust(cell + spare), DIM)
    return [values, labels]


def sparkline(points: Sequence[Point], width: int) -> list[Text]:
    """The mean return over the run in one line; empty with fewer than two points."""
    if len(points) < 2:
        return []
    words = f"  {score(min(p.value for p in points))} to {score(max(p.value for p in points))}"
    (line,) = _area(points, width - _LABEL_WIDTH - len(words), 1)
    return [Text.assemble(("so far".ljust(_LABEL_WIDTH), DIM), (line, _ACCENT), (words, DIM))]


def chart(points: Sequence[Point], width: int, rows: int) -> list[Text]:
    """The mean return over the run as an area chart, labelled with its lowest and highest value."""
    title = Text("mean return of the last 100 games", DIM)
    if len(points) < 2:
        return [title.append(": no curve yet")]
    title.append(f", over {_short(points[-1].env_steps)} env steps")
    labels = [""] * rows
    labels[0], labels[-1] = (score(f(p.value for p in points)) for f in (max, min))
    margin = max(map(len, labels)) + 2
    areas = zip(labels, _area(points, width - margin, rows), strict=True)
    return [title] + [
        Text.assemble((f"{label:>{margin - 2}} │", DIM), (area, _ACCENT)) for label, area in areas
    ]


def _area(points: Sequence[Point], width: int, rows: int) -> list[str]:
    """The area below the curve; the lowest value is one eighth high, so it has no gaps."""
    steps, _, values = np.array(points).T
    low, high = values.min(), values.max()
    values = np.interp(np.linspace(steps[0], steps[-1], max(1, width)), steps, values)
    eighths = 1 + np.round((8 * rows - 1) * (values - low) / ((high - low) or 1.0)).astype(int)
    bases = range(8 * (rows - 1), -1, -8)
    return ["".join(_BLOCKS[e] for e in np.clip(eighths - base, 0, 8)) for base in bases]


def warnings(status: Status, width: int) -> list[Text]:
    shown = list(status.warnings[:_MAX_WARNINGS])
    if more := len(status.warnings) - len(shown):
        shown[-1] = f"and {more + 1} more warnings: `status` shows them all"
    lines = [Text.assemble(("! ", "bold yellow"), (line, "yellow")) for line in shown]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


_CELLS = snapshot.CELLS | {
    "restarts": lambda p: str(p.restarts) if p.restarts else snapshot.NOTHING,
    "↻": lambda p: f"↻{p.restarts}" if p.restarts else "",
}
# The least widths, so that columns rarely move; longer cells make theirs wider.
_WIDTHS = {"state": 10, "CPU": 7, "memory": 9, "steps/s": 8, "games": 7, "restarts": 9}
_WIDTHS |= {"heartbeat": 11, "up for": 11, "pid": 8, "address": 16, "↻": 4}
_ROW = ("state", "CPU", "memory", "steps/s", "games", "restarts", "heartbeat")
_EXTRA = ("up for", "pid", "address")  # added in this order while a row has space
_GRIDS = (("steps/s", "CPU", "memory", "↻"), ("steps/s", "CPU", "↻"), ("steps/s", "↻"), ("↻",))


def process_cells(processes: Sequence[ProcessStatus], width: int, rows: int) -> list[Text] | None:
    """All processes in `rows` lines, one in each or in columns of cells; None if they don't fit."""
    name_width = _name_width(processes)
    widths = {
        title: max([least, *(len(_CELLS[title](p)) + (title != "state") for p in processes)])
        for title, least in _WIDTHS.items()
    }
    line = list(_ROW)
    for extra in _EXTRA:
        if name_width + sum(widths[title] for title in (*line, extra)) <= width:
            line.append(extra)
    for titles in (line, *_GRIDS):
        columns = {title: widths[title] for title in titles}
        cell_width = name_width + sum(columns.values()) + _GAP
        across = 1 if titles is line else max(1, (width + _GAP) // cell_width)
        down = -(-len(processes) // across)
        if down + 1 <= rows:
            aligned = [_aligned(title, title, width) for title, width in columns.items()]
            heading = Text(" " * name_width + "".join(aligned), DIM)
            cells = [_process_line(p, columns, name_width) for p in processes]
            lines = [[heading] * len(cells[::down]), *(cells[row::down] for row in range(down))]
            return [Text(" " * _GAP).join(parts) for parts in lines]
    return None


def only_trouble(processes: Sequence[ProcessStatus], rows: int) -> list[Text]:
    """The number of processes in each state, and the failing ones by name, as many as fit."""
    counts = Counter(p.state for p in processes)
    words = [Text(f"{n} {s}", _STATE_STYLES.get(s, "")) for s, n in counts.most_common()]
    line = Text(f"{len(processes)} processes: ").append_text(Text(", ").join(words))
    troubled = [p for p in processes if p.state in ("restarting", "failed", "dead")]
    shown = troubled[: max(0, rows - 1)]
    columns = {title: _WIDTHS[title] for title in ("state", "↻")}
    return [line, *(_process_line(p, columns, _name_width(processes)) for p in shown)]


def _name_width(processes: Sequence[ProcessStatus]) -> int:
    return max([_LABEL_WIDTH, *(len(p.name) + 3 for p in processes)])


def _aligned(title: str, text: str, width: int) -> str:
    return f"{text:{'<' if title == 'state' else '>'}{width}}"


def _process_line(p: ProcessStatus, columns: Mapping[str, int], name_width: int) -> Text:
    """A process's cells, in columns of these widths by their titles."""
    state_style = _STATE_STYLES.get(p.state, "")
    usual = "" if p.is_live else DIM
    dot = "○ " if p.state in ("waiting", "elsewhere", "stopped", "done") else "● "
    name = printable(p.name).ljust(name_width - 2)
    line = Text.assemble((dot, state_style), (name, usual))
    styles = {"state": state_style, "heartbeat": "red" if (p.heartbeat_age_s or 0) > 30 else usual}
    styles |= dict.fromkeys(("restarts", "↻"), "magenta" if p.restarts else DIM)
    for title, width in columns.items():
        line.append(_aligned(title, _CELLS[title](p), width), styles.get(title, usual))
    return line
