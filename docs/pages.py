"""Gather the pages of the documentation site in `.docs/pages`: `make docs`.

The pages lie there as in the repository, so that their links stay right. Files that they link to
are copied too, and a linked folder becomes a page that lists its files. The page of options is made
from the settings, and the tables of docs/metrics.md from the table of metrics.
"""

import posixpath
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.append(str(REPOSITORY))

from a3c.config import SECTIONS  # noqa: E402
from a3c.config.command_line import plain  # noqa: E402
from a3c.config.options import OPTIONS, Option  # noqa: E402
from a3c.run import metrics  # noqa: E402

PAGES = REPOSITORY / ".docs" / "pages"
OTHERS = (
    *("README", "SECURITY", "CONTRIBUTING", "CHANGELOG"),
    "docker/README",
    "benchmarks/README",
)
LINK = re.compile(r"(\]\()([^)#:\s]+)(#[^)\s]*)?(\))")  # no addresses, and no `#section` alone


def main() -> None:
    """Write the tables of docs/metrics.md, then all pages and what they link to."""
    path = REPOSITORY / "docs" / "metrics.md"
    path.write_text(with_tables(path.read_text("utf-8")), "utf-8")
    shutil.rmtree(PAGES, ignore_errors=True)
    for page in [*(f"{name}.md" for name in OTHERS), *files_of("docs", "*.md")]:
        write(page, with_links(page, (REPOSITORY / page).read_text("utf-8")))
    write("docs/options.md", options())
    copy(["docs/site.css"])


def write(name: str, text: str) -> None:
    (PAGES / name).parent.mkdir(parents=True, exist_ok=True)
    (PAGES / name).write_text(text, "utf-8")


def files_of(folder: str, pattern: str = "*") -> list[str]:
    """The files directly in a folder of the repository, by their paths in it."""
    found = sorted((REPOSITORY / folder).glob(pattern))
    return [str(path.relative_to(REPOSITORY)) for path in found if path.is_file()]


# --- links ----------------------------------------------------------------------------------------


def with_links(page: str, text: str) -> str:
    """A page whose links to folders lead to lists of files; all it links to is copied."""

    def led(link: re.Match[str]) -> str:
        begin, target, anchor, end = link.groups()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
        if (REPOSITORY / path).is_dir():
            copy(files_of(path))
            write(f"{path}/index.md", listing(path))
            target = f"{target.rstrip('/')}/index.md"
        elif not path.endswith(".md"):
            copy([path])
        return f"{begin}{target}{anchor or ''}{end}"

    return LINK.sub(led, text)


def copy(files: Iterable[str]) -> None:
    """Copy files of the repository; a missing one stays for mkdocs to report."""
    for name in files:
        if (REPOSITORY / name).is_file():
            (PAGES / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, PAGES / name)


def listing(folder: str) -> str:
    """A page that lists the files of a folder."""
    names = [posixpath.basename(path) for path in files_of(folder)]
    return "\n".join([f"# {folder}\n", *(f"- [{name}]({name})" for name in names)]) + "\n"


# --- what the code says ---------------------------------------------------------------------------


def options() -> str:
    """The page of all options, from the settings."""
    parts = [
        "# Options\n\nEvery setting of a run: its flag on the command line, its default and its "
        "allowed values. In a file for `--config` a setting is in the table of its section, "
        "under the flag's name with underscores, `max_env_steps` in `[run]`. "
        "`launch_cluster.py config` shows what is in effect, and from where."
    ]
    for section in SECTIONS:
        rows = [row(option) for option in OPTIONS.values() if option.section == section]
        parts.append(f"## {section}\n\n{table(HEAD, rows)}")
    return "\n\n".join(parts) + "\n"


HEAD = ("flag", "default", "allowed", "what it does")


def row(option: Option) -> tuple[str, ...]:
    default = plain({} if option.kind is dict else option.field.default)
    if option.name == "workers":
        default = "the number of cores"
    flag = f"`{option.flag}`"
    if option.name != option.flag[2:].replace("-", "_"):
        flag += f", in files `{option.name}`"
    return flag, default, option.allowed, option.field.metadata["help"]


def with_tables(page: str) -> str:
    """docs/metrics.md with its tables made anew."""
    for title, rows in metrics.SECTIONS.items():
        made = table(
            ("name", "unit", "definition", "how to read it"),
            [(f"`{name}`", *metric) for name, metric in rows.items()],
        )
        section = re.compile(rf"(^## {title}\n(?:(?!^## |^\|).*\n)*)(?:^\|.*\n?)+", re.MULTILINE)
        found = section.search(page)
        assert found, f"docs/metrics.md has no section {title} with a table"
        page = f"{page[: found.start()]}{found[1]}{made}\n{page[found.end() :]}"
    return page


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    rule = ("---",) * len(head)
    return "\n".join(re.sub(" +", " ", f"| {' | '.join(cells)} |") for cells in (head, rule, *rows))


if __name__ == "__main__":
    main()
