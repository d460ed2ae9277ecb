"""The layout of the dashboard: lines of text that fit the terminal's width and, if given, height.

Space is given in order of importance: progress, rates, warnings, then processes (one per line, in
columns of cells, or only the failing ones), then the curve.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from a3c.process.console import count
from a3c.watch import curve_tail, process_cells
from a3c.watch.curve_tail import Point
from a3c.watch.process_cells import DIM, STATE_STYLES
from a3c.watch.snapshot import NOTHING, RUNNING, Status, duration, percent, printable, rate, score

_ACCENT = "cyan"
_LABEL_WIDTH = 11
_BLOCKS = " ▁▂▃▄▅▆▇█"
_MIN_CHART_ROWS, _MAX_CHART_ROWS = 3, 8
_MAX_WARNINGS = 4
_FAR_S = 100 * 3600.0
_ASCII = str.maketrans("●○━╸─▁▂▃▄▅▆▇█·↻≤…│", "*o=>-...:::##-r<~|")


@dataclass(frozen=True)
class View:
    """A run as a rich renderable, at most `max_rows` high."""

    status: Status
    points: Sequence[Point] = ()
    notes: Sequence[str] = ()
    max_rows: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines."""
        rows = options.height or self.max_rows
        lines = draw(self, options.max_width, rows)
        for line in lines if rows is None else lines[:rows]:
            line.no_wrap, line.overflow = True, "crop"
            if options.ascii_only:
                line.plain = line.plain.translate(_ASCII).encode("ascii", "replace").decode()
            yield line


def draw(view: View, width: int, rows: int | None) -> list[Text]:
    """The lines of a view; with `rows`, parts are shortened or left out until they fit."""
    status = view.status
    top, progress, now = header(status, width), bars(view, width), figures(status, width)
    below = warnings(status, width) + [Text(printable(note), DIM) for note in view.notes]
    gaps = 4 if below else 3
    if rows is None:
        table = process_cells.table(status.processes, width)
        curve = chart(view.points, width, _MAX_CHART_ROWS)
        return _joined([top, progress, now, curve, table, below], spaced=True)
    spark = sparkline(view.points, width)
    room = rows - len(top + progress + now + spark + below)
    table = (
        process_cells.best(status.processes, width, room - gaps)
        or process_cells.best(status.processes, width, room)
        or process_cells.only_trouble(status.processes, room)
    )
    left = room - len(table)
    if left + len(spark) >= gaps + 2 + _MIN_CHART_ROWS:
        height = min(_MAX_CHART_ROWS, left + len(spark) - gaps - 2)
        curve = chart(view.points, width, height)
        return _joined([top, progress, now, curve, table, below], spaced=True)
    return _joined([top, progress + spark, now, table, below], spaced=left >= gaps)


def _joined(sections: Iterable[list[Text]], spaced: bool) -> list[Text]:
    lines: list[Text] = []
    for section in sections:
        if section and lines and spaced:
            lines.append(Text())
        lines += section
    return lines


# --- the parts ------------------------------------------------------------------------------------


def header(status: Status, width: int) -> list[Text]:
    """The run's name and state, its game and the size of its cluster."""
    word = "solved" if status.solved else status.state
    style = "bold green" if status.solved else f"bold {STATE_STYLES.get(status.state, '')}"
    right = Text.assemble(("● " + word, style))
    if status.wall_s:
        right.append(f"  {duration(status.wall_s)}", DIM)
    left = Text.assemble((" a3c ", f"bold reverse {_ACCENT}"), " ", (printable(status.run), "bold"))
    num_ps = len(status.of_role("ps"))
    each = count(status.envs_per_worker, "environment")
    crew = f"{num_ps} ps · {count(status.workers, 'worker')} x {each}"
    lines = [_spread(left, right, width), Text(f"{printable(status.env_id)} · {crew}", DIM)]
    if status.tensorboard:
        lines.append(Text(f"TensorBoard {printable(status.tensorboard)}", DIM))
    return lines


def _spread(left: Text, right: Text, width: int) -> Text:
    """Left and right text on one line; the left text is truncated if needed."""
    room = max(0, width - right.cell_len - 1)
    left.truncate(room, overflow="ellipsis")
    return Text.assemble(left, " " * (width - left.cell_len - right.cell_len), right)


def bars(view: View, width: int) -> list[Text]:
    """Progress bars: env steps and, if the run has a goal, the mean return."""
    status = view.status
    share = min(1.0, status.global_step / status.max_env_steps)
    words = f"{_short(status.global_step)} of {_short(status.max_env_steps)}"
    lines = [("env steps", share, words, _steps_left(status))]
    if status.stop_at_return is not None:
        goal, mean = status.stop_at_return, status.mean_return_100
        words = f"{score(mean, goal)} of {score(goal, goal)}"
        lines.append(("return", _goal_share(view), words, _goal_left(view)))
    text_width = max(len(words) + (len(left) + 3 if left else 0) for _, _, words, left in lines)
    bar_width = max(4, width - _LABEL_WIDTH - text_width - 9)
    return [
        Text.assemble(
            (label.ljust(_LABEL_WIDTH), DIM),
            _bar(part, bar_width),
            (f" {100 * part:4.0f} %  ", "bold"),
            words,
            (f" · {left}" if left else "", DIM),
        )
        for label, part, words, left in lines
    ]


def _bar(share: float, width: int) -> Text:
    halves = round(2 * width * share)
    full, half = divmod(halves, 2)
    done = "━" * full + "╸" * half
    return Text.assemble((done, _ACCENT), ("─" * (width - len(done)), DIM))


def _short(number: int) -> str:
    """A short form of a count: 950, 30.1k, 3.41M, 10M."""
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if number >= size:
            text = f"{number / size:.3g}"
            return f"{number // size}{unit}" if "e" in text else text + unit
    return str(number)


def _steps_left(status: Status) -> str:
    if status.state != RUNNING or not status.env_steps_per_s:
        return ""
    seconds = (status.max_env_steps - status.global_step) / status.env_steps_per_s
    return f"{duration(seconds)} left" if 0 <= seconds < 100 * _FAR_S else ""


def _goal_share(view: View) -> float:
    """The progress from the lowest mean return so far to the goal, from 0 to 1."""
    goal, mean = view.status.stop_at_return, view.status.mean_return_100
    if goal is None or mean is None:
        return 0.0
    low = min((point.value for point in view.points), default=mean)
    return 1.0 if mean >= goal else max(0.0, (mean - low) / (goal - low)) if goal > low else 0.0


def _goal_left(view: View) -> str:
    goal, mean = view.status.stop_at_return, view.status.mean_return_100
    if view.status.state != RUNNING or goal is None or mean is None or mean >= goal:
        return ""
    slope = curve_tail.trend(view.points)
    seconds = (goal - mean) / slope if slope and slope > 0 else _FAR_S
    return f"about {duration(_coarse(seconds))}" if seconds < _FAR_S else "no trend"


def _coarse(seconds: float) -> float:
    """Round an estimated time, which isn't precise."""
    step = 5 if seconds < 60 else 60 if seconds < 3600 else 600
    return max(step, round(seconds / step) * step)


def figures(status: Status, width: int) -> list[Text]:
    """The current numbers: a line of values above a line of labels."""
    load = [p.cpu_percent for p in status.of_role("ps") if p.cpu_percent is not None]
    newest = status.checkpoint
    pairs = [
        ("return", score(status.mean_return_100, status.stop_at_return), "bold"),
        ("env steps/s", rate(status.env_steps_per_s), "bold"),
        ("frames/s", rate(status.frames_per_s), "bold"),
        ("updates/s", rate(status.updates_per_s), "bold"),
        ("staleness", rate(status.staleness), "bold"),
        ("games", NOTHING if status.episodes is None else _short(status.episodes), "bold"),
        ("ps load", percent(max(load)) if load else NOTHING, _load_style(load)),
        ("checkpoint", f"{duration(newest.age_s)} ago" if newest else "none yet", "bold"),
    ]
    if status.frames_per_s is None:
        del pairs[2]
    widths = [max(len(label), len(value)) + 1 for label, value, _ in pairs]
    spare = max(0, min(24, (width - sum(widths)) // len(pairs)))
    values, labels = Text(), Text()
    for (label, value, style), cell in zip(pairs, widths, strict=True):
        values.append(value.ljust(cell + spare), style)
        labels.append(label.ljust(cell + spare), DIM)
    return [values, labels]


def _load_style(load: Sequence[float]) -> str:
    busiest = max(load, default=0.0)
    return "bold red" if busiest > 90 else "bold yellow" if busiest > 70 else "bold"


def sparkline(points: Sequence[Point], width: int) -> list[Text]:
    """The mean return over the run in one line; empty with fewer than two points."""
    if len(points) < 2:
        return []
    low, high = min(p.value for p in points), max(p.value for p in points)
    words = f"  {score(low)} to {score(high)}"
    values = curve_tail.resample(points, max(1, width - _LABEL_WIDTH - len(words)))
    steps = (1 + round(7 * (v - low) / ((high - low) or 1.0)) for v in values)
    line = "".join(_BLOCKS[step] for step in steps)
    return [Text.assemble(("so far".ljust(_LABEL_WIDTH), DIM), (line, _ACCENT), (words, DIM))]


def chart(points: Sequence[Point], width: int, rows: int) -> list[Text]:
    """The mean return over the run as an area chart, labelled with its lowest and highest value."""
    title = Text("mean return of the last 100 games", DIM)
    if len(points) < 2:
        return [title.append(": no curve yet")]
    title.append(f", over {_short(points[-1].env_steps)} env steps")
    low, high = min(p.value for p in points), max(p.value for p in points)
    labels = {0: score(high), rows - 1: score(low)}
    margin = max(map(len, labels.values())) + 2
    values = curve_tail.resample(points, max(1, width - margin))
    # The lowest value is one eighth high, so that the curve has no gaps.
    eighths = [1 + round((8 * rows - 1) * (v - low) / ((high - low) or 1.0)) for v in values]
    lines = [title]
    for row in range(rows):
        base = 8 * (rows - 1 - row)
        area = "".join(_BLOCKS[min(8, max(0, eighth - base))] for eighth in eighths)
        label = labels.get(row, "")
        lines.append(Text.assemble((f"{label:>{margin - 2}} │", DIM), (area, _ACCENT)))
    return lines


def warnings(status: Status, width: int) -> list[Text]:
    """The first `_MAX_WARNINGS` warnings, one per line."""
    shown = list(status.warnings[:_MAX_WARNINGS])
    more = len(status.warnings) - len(shown)
    if more:
        shown[-1] = f"and {more + 1} more warnings: `status` shows them all"
    lines = [Text.assemble(("! ", "bold yellow"), (line, "yellow")) for line in shown]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines
