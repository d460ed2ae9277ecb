"""The layout of the dashboard: lines of text that fit the terminal's width and, if given, height.

Space is given in order of importance: progress, rates, warnings, then processes (one per line, in
columns of cells, or only the failing ones), then the curve.
"""

from __future__ import annotations

import bisect
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from a3c.process.console import count
from a3c.watch.curve import Point, roughly, seconds_to_end, seconds_to_goal
from a3c.watch.snapshot import (
    CELLS,
    NOTHING,
    RUNNING,
    ProcessStatus,
    Status,
    duration,
    percent,
    printable,
    rate,
    score,
)

DIM = "bright_black"
_ACCENT = "cyan"
_STATE_STYLES = {
    "starting": "yellow",
    "waiting": "bright_black",
    "running": "green",
    "restarting": "bold magenta",
    "done": "cyan",
    "stopped": "bright_black",
    "failed": "bold red",
    "dead": "bold red",
}
_LABEL_WIDTH = 11
_BLOCKS = " ▁▂▃▄▅▆▇█"
_MIN_CHART_ROWS, _MAX_CHART_ROWS = 3, 8
_MAX_WARNINGS = 4
_GAP = 2
_ASCII = str.maketrans("●○━╸─▁▂▃▄▅▆▇█·↻≤…│", "*o=>-...:::##-r<~|")


@dataclass(frozen=True)
class View:
    """A run as a rich renderable, as high as the console's options say."""

    status: Status
    points: Sequence[Point] = ()
    notes: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = options.height or sys.maxsize
        for line in draw(self, options.max_width, rows)[:rows]:
            line.no_wrap, line.overflow = True, "crop"
            if options.ascii_only:
                line.plain = line.plain.translate(_ASCII).encode("ascii", "replace").decode()
            yield line


def draw(view: View, width: int, rows: int) -> list[Text]:
    """The lines of a view; parts are shortened or left out until they fit into `rows`."""
    status = view.status
    top, progress, now = header(status, width), bars(view, width), figures(status, width)
    below = warnings(status, width) + [Text(printable(note), DIM) for note in view.notes]
    gaps = 4 if below else 3
    spark = sparkline(view.points, width)
    room = rows - len(top + progress + now + spark + below)
    table = (
        process_cells(status.processes, width, room - gaps)
        or process_cells(status.processes, width, room)
        or only_trouble(status.processes, room)
    )
    left = room - len(table)
    chart_rows = min(_MAX_CHART_ROWS, left + len(spark) - gaps - 2)
    if chart_rows >= _MIN_CHART_ROWS:
        sections, left = [top, progress, now, chart(view.points, width, chart_rows), table], gaps
    else:
        sections = [top, progress + spark, now, table]
    lines: list[Text] = []
    for section in filter(None, [*sections, below]):
        lines += [Text(), *section] if lines and left >= gaps else section
    return lines


# --- the parts ------------------------------------------------------------------------------------


def header(status: Status, width: int) -> list[Text]:
    """The run's name and state, its game and the size of its cluster."""
    style = "bold green" if status.solved else f"bold {_STATE_STYLES.get(status.state, '')}"
    right = Text.assemble(("● " + status.word, style))
    if status.wall_s:
        right.append(f"  {duration(status.wall_s)}", DIM)
    left = Text.assemble((" a3c ", f"bold reverse {_ACCENT}"), " ", (printable(status.run), "bold"))
    num_ps = len(status.of_role("ps"))
    each = count(status.envs_per_worker, "environment")
    crew = f"{num_ps} ps · {count(status.workers, 'worker')} x {each}"
    left.truncate(max(0, width - right.cell_len - 1), overflow="ellipsis")
    space = " " * (width - left.cell_len - right.cell_len)
    lines = [Text.assemble(left, space, right), Text(f"{printable(status.env_id)} · {crew}", DIM)]
    if status.tensorboard:
        lines.append(Text(f"TensorBoard {printable(status.tensorboard)}", DIM))
    return lines


def bars(view: View, width: int) -> list[Text]:
    """Progress bars: env steps and, if the run has a goal, the mean return."""
    status = view.status
    share = min(1.0, status.global_step / status.max_env_steps)
    words = f"{_short(status.global_step)} of {_short(status.max_env_steps)}"
    left = ""
    if (seconds := seconds_to_end(status)) is not None:
        left = f"{duration(seconds)} left"
    lines = [("env steps", share, words, left)]
    if status.stop_at_return is not None:
        goal, mean = status.stop_at_return, status.mean_return_100
        words = f"{score(mean, goal)} of {score(goal, goal)}"
        share, left = _goal_progress(view, goal, mean)
        lines.append(("return", share, words, left))
    text_width = max(len(words) + (len(left) + 3 if left else 0) for _, _, words, left in lines)
    bar_width = max(4, width - _LABEL_WIDTH - text_width - 9)
    texts = []
    for label, share, words, left in lines:
        full, half = divmod(round(2 * bar_width * share), 2)
        done = "━" * full + "╸" * half
        text = Text.assemble((label.ljust(_LABEL_WIDTH), DIM), (done, _ACCENT))
        text.append("─" * (bar_width - len(done)), DIM)
        text.append(f" {100 * share:4.0f} %  ", "bold")
        texts.append(text.append(words).append(f" · {left}" if left else "", DIM))
    return texts


def _short(number: int) -> str:
    """A short form of a count: 950, 30.1k, 3.41M, 10M."""
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if number >= size:
            text = f"{number / size:.3g}"
            return f"{number // size}{unit}" if "e" in text else text + unit
    return str(number)


def _goal_progress(view: View, goal: float, mean: float | None) -> tuple[float, str]:
    """The progress from the lowest mean return so far to the goal, 0 to 1, and the time left."""
    if mean is None:
        return 0.0, ""
    if mean >= goal:
        return 1.0, ""
    low = min((point.value for point in view.points), default=mean)
    share = max(0.0, (mean - low) / (goal - low)) if goal > low else 0.0
    if view.status.state != RUNNING:
        return share, ""
    seconds = seconds_to_goal(goal, mean, view.points)
    return share, "no trend" if seconds is None else f"about {roughly(seconds)}"


def figures(status: Status, width: int) -> list[Text]:
    """The current numbers: a line of values above a line of labels."""
    load = [p.cpu_percent for p in status.of_role("ps") if p.cpu_percent is not None]
    busiest = max(load, default=0.0)
    style = "bold red" if busiest > 90 else "bold yellow" if busiest > 70 else "bold"
    newest = status.checkpoint
    pairs = [
        ("return", score(status.mean_return_100, status.stop_at_return), "bold"),
        ("env steps/s", rate(status.env_steps_per_s), "bold"),
        ("frames/s", rate(status.frames_per_s), "bold"),
        ("updates/s", rate(status.updates_per_s), "bold"),
        ("staleness", rate(status.staleness), "bold"),
        ("games", NOTHING if status.episodes is None else _short(status.episodes), "bold"),
        ("ps load", percent(busiest) if load else NOTHING, style),
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
    areas = _area(points, width - margin, rows)
    return [
        title,
        *(
            Text.assemble((f"{label:>{margin - 2}} │", DIM), (area, _ACCENT))
            for label, area in zip(labels, areas, strict=True)
        ),
    ]


def _area(points: Sequence[Point], width: int, rows: int) -> list[str]:
    """The area below the curve; the lowest value is one eighth high, so it has no gaps."""
    low, high = min(p.value for p in points), max(p.value for p in points)
    values = resample(points, max(1, width))
    eighths = [1 + round((8 * rows - 1) * (v - low) / ((high - low) or 1.0)) for v in values]
    bases = range(8 * (rows - 1), -1, -8)
    return ["".join(_BLOCKS[min(8, max(0, e - base))] for e in eighths) for base in bases]


def warnings(status: Status, width: int) -> list[Text]:
    shown = list(status.warnings[:_MAX_WARNINGS])
    more = len(status.warnings) - len(shown)
    if more:
        shown[-1] = f"and {more + 1} more warnings: `status` shows them all"
    lines = [Text.assemble(("! ", "bold yellow"), (line, "yellow")) for line in shown]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


# --- processes ------------------------------------------------------------------------------------

_CELLS = CELLS | {
    "restarts": lambda p: str(p.restarts) if p.restarts else NOTHING,
    "↻": lambda p: f"↻{p.restarts}" if p.restarts else "",
}
_WIDTHS = {
    "state": 10,
    "CPU": 7,
    "memory": 9,
    "steps/s": 8,
    "games": 7,
    "restarts": 9,
    "heartbeat": 11,
    "up for": 11,
    "pid": 8,
    "address": 16,
    "↻": 4,
}
_ROW = ("state", "CPU", "memory", "steps/s", "games", "restarts", "heartbeat")
_EXTRA = ("up for", "pid", "address")  # added in this order while a row has space
_GRIDS = (("steps/s", "CPU", "memory", "↻"), ("steps/s", "CPU", "↻"), ("steps/s", "↻"), ("↻",))


def process_cells(processes: Sequence[ProcessStatus], width: int, rows: int) -> list[Text] | None:
    """All processes in at most `rows` lines, as detailed as possible; None if they don't fit.

    Each has a line, or a cell in as many columns as fit, ordered down each column.
    """
    name_width = max(_LABEL_WIDTH, *(len(p.name) + 3 for p in processes))
    line = list(_ROW)
    for extra in _EXTRA:
        if name_width + sum(_WIDTHS[title] for title in (*line, extra)) + len(line) <= width:
            line.append(extra)
    for titles in (line, *_GRIDS):
        cell_width = name_width + sum(_WIDTHS[title] for title in titles) + _GAP
        across = 1 if titles is line else max(1, (width + _GAP) // cell_width)
        down = -(-len(processes) // across)
        if down + 1 <= rows:
            heading = " " * name_width + "".join(_aligned(title, title) for title in titles)
            headings = [Text(heading, DIM)] * min(across, -(-len(processes) // down))
            cells = [_process_line(p, titles, name_width) for p in processes]
            lines = [headings, *(cells[row::down] for row in range(down))]
            return [Text(" " * _GAP).join(parts) for parts in lines]
    return None


def only_trouble(processes: Sequence[ProcessStatus], rows: int) -> list[Text]:
    """The number of processes in each state, and the failing ones by name, as many as fit."""
    counts = Counter(p.state for p in processes)
    words = [
        Text(f"{n} {state}", _STATE_STYLES.get(state, "")) for state, n in counts.most_common()
    ]
    line = Text(f"{len(processes)} processes: ").append_text(Text(", ").join(words))
    troubled = [p for p in processes if p.state in ("restarting", "failed", "dead")]
    shown = troubled[: max(0, rows - 1)]
    return [line, *(_process_line(p, ("state", "↻"), _LABEL_WIDTH) for p in shown)]


def _aligned(title: str, text: str) -> str:
    width = _WIDTHS[title]
    return f"{text[:width]:{'<' if title == 'state' else '>'}{width}}"


def _process_line(p: ProcessStatus, titles: Sequence[str], name_width: int) -> Text:
    state_style = _STATE_STYLES.get(p.state, "")
    usual = "" if p.is_live else DIM
    dot = "○ " if p.state in ("waiting", "stopped", "done") else "● "
    name = printable(p.name)[: name_width - 3].ljust(name_width - 2)
    line = Text.assemble((dot, state_style), (name, usual))
    styles = {"state": state_style, "heartbeat": "red" if (p.heartbeat_age_s or 0) > 30 else usual}
    styles |= dict.fromkeys(("restarts", "↻"), "magenta" if p.restarts else DIM)
    for title in titles:
        line.append(_aligned(title, _CELLS[title](p)), styles.get(title, usual))
    return line


# --- the curve ------------------------------------------------------------------------------------


def resample(points: Sequence[Point], count: int) -> list[float]:
    """The value at `count` positions evenly over the env steps, interpolated between points."""
    first, last = points[0].env_steps, points[-1].env_steps
    if first == last or count == 1:
        return [points[-1].value] * count
    values = []
    for place in range(count):
        at = first + (last - first) * place / (count - 1)
        index = bisect.bisect_right(points, at, 1, len(points) - 1, key=lambda p: p.env_steps)
        (start, _, low), (end, _, high) = points[index - 1 : index + 1]
        share = min(1.0, max(0.0, (at - start) / max(1, end - start)))
        values.append(low + share * (high - low))
    return values
