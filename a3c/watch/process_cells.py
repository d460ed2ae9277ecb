"""Processes on a terminal: one per line, as cells in columns, or only the failing ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.text import Text

from a3c.watch.snapshot import NOTHING, ProcessStatus, duration, memory, percent, printable, rate

DIM = "bright_black"
STATE_STYLES = {
    "starting": "yellow",
    "waiting": "bright_black",
    "running": "green",
    "restarting": "bold magenta",
    "done": "cyan",
    "stopped": "bright_black",
    "failed": "bold red",
    "dead": "bold red",
}
_NAME_WIDTH = 11
_GAP = 2


class _Column(NamedTuple):
    title: str
    width: int
    cell: Callable[[ProcessStatus], str]


def _games(p: ProcessStatus) -> str:
    return NOTHING if p.episodes is None else f"{p.episodes:,}"


def _restarts(p: ProcessStatus) -> str:
    return str(p.restarts) if p.restarts else NOTHING


def _again(p: ProcessStatus) -> str:
    return f"↻{p.restarts}" if p.restarts else ""


_STATE = _Column("state", 10, lambda p: p.state)
_CPU = _Column("CPU", 7, lambda p: percent(p.cpu_percent))
_MEMORY = _Column("memory", 9, memory)
_STEPS = _Column("steps/s", 8, lambda p: rate(p.env_steps_per_s))
_GAMES = _Column("games", 7, _games)
_RESTARTS = _Column("restarts", 9, _restarts)
_BEAT = _Column("heartbeat", 11, lambda p: duration(p.heartbeat_age_s))
_UP = _Column("up for", 11, lambda p: duration(p.uptime_s))
_PID = _Column("pid", 8, lambda p: NOTHING if p.pid is None else str(p.pid))
_ADDRESS = _Column("address", 16, lambda p: printable(p.address))
_AGAIN = _Column("↻", 4, _again)

_ROW = (_STATE, _CPU, _MEMORY, _STEPS, _GAMES, _RESTARTS, _BEAT)
_EXTRA = (_UP, _PID, _ADDRESS)  # added in this order while a row has space
_CELLS = ((_STEPS, _CPU, _MEMORY, _AGAIN), (_STEPS, _CPU, _AGAIN), (_STEPS, _AGAIN), (_AGAIN,))


def best(processes: Sequence[ProcessStatus], width: int, rows: int) -> list[Text] | None:
    """The most detailed form that shows all processes in `rows` lines; None if none fits."""
    if len(processes) + 1 <= rows:
        return table(processes, width)
    for columns in _CELLS:
        lines = _grid(processes, columns, width)
        if len(lines) <= rows:
            return lines
    return None


def table(processes: Sequence[ProcessStatus], width: int) -> list[Text]:
    """A line of titles and one line per process."""
    columns = list(_ROW)
    name_width = max(_NAME_WIDTH, *(len(p.name) + 3 for p in processes))
    for extra in _EXTRA:
        if name_width + sum(column.width for column in (*columns, extra)) + len(columns) <= width:
            columns.append(extra)
    titles = Text(" " * name_width, DIM)
    for column in columns:
        titles.append(_set(column, column.title), DIM)
    return [titles, *(_line(p, columns, name_width) for p in processes)]


def _grid(processes: Sequence[ProcessStatus], columns: Sequence[_Column], width: int) -> list[Text]:
    """A line of titles and cells in as many columns as fit, ordered down each column."""
    name_width = max(len(p.name) for p in processes) + 3
    cell_width = name_width + sum(column.width for column in columns) + _GAP
    across = max(1, (width + _GAP) // cell_width)
    down = -(-len(processes) // across)
    cells = [_line(p, columns, name_width) for p in processes]
    titles = Text(" " * name_width)
    for column in columns:
        titles.append(_set(column, column.title))
    heading = Text("  ", DIM).join([titles] * min(across, -(-len(processes) // down)))
    heading.stylize(DIM)
    lines = []
    for row in range(down):
        lines.append(Text("  ").join(cells[row::down]))
    return [heading, *lines]


def _set(column: _Column, text: str) -> str:
    """The text cut and aligned in its column: the state left, numbers right."""
    text = text[: column.width]
    return f"{text:<{column.width}}" if column is _STATE else f"{text:>{column.width}}"


def _line(p: ProcessStatus, columns: Sequence[_Column], name_width: int) -> Text:
    style = STATE_STYLES.get(p.state, "")
    dot = "○ " if p.state in ("waiting", "stopped", "done") else "● "
    name = printable(p.name)[: name_width - 3].ljust(name_width - 2)
    line = Text.assemble((dot, style), (name, "" if p.is_live else DIM))
    for column in columns:
        text = _set(column, column.cell(p))
        line.append(text, _cell_style(p, column, style))
    return line


def _cell_style(p: ProcessStatus, column: _Column, state_style: str) -> str:
    if column is _STATE:
        return state_style
    if column in (_RESTARTS, _AGAIN):
        return "magenta" if p.restarts else DIM
    late = column is _BEAT and (p.heartbeat_age_s or 0) > 30
    return "red" if late else "" if p.is_live else DIM


def only_trouble(processes: Sequence[ProcessStatus], rows: int) -> list[Text]:
    """The number of processes in each state, and the failing ones by name, as many as fit."""
    counts = Counter(p.state for p in processes)
    line = Text(f"{len(processes)} processes: ")
    parts = [Text(f"{n} {state}", STATE_STYLES.get(state, "")) for state, n in counts.most_common()]
    line.append_text(Text(", ").join(parts))
    troubled = [p for p in processes if p.is_in_trouble][: max(0, rows - 1)]
    return [line, *(_line(p, (_STATE, _AGAIN), _NAME_WIDTH) for p in troubled)]
