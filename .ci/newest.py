"""Print the project's libraries for pip, without the lock: `make next`.

With `--beyond` the upper limits of TensorFlow, gymnasium and ale-py are left out, to learn early
what their next releases break. This needs only Python itself.
"""

import re
import sys
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
WATCHED = ("tensorflow", "gymnasium", "ale-py")
TESTERS = ("hypothesis", "pytest")  # of the extra `dev`


def requirements(*, beyond: bool) -> dict[str, str]:
    """The project's libraries and what tests need: name with extras, and the allowed versions."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    developers = [r for r in project["optional-dependencies"]["dev"] if r.startswith(TESTERS)]
    found = {}
    for requirement in [*project["dependencies"], *developers]:
        name = re.split("[<>=]", requirement)[0]
        limits = requirement.removeprefix(name)
        if beyond and name.partition("[")[0] in WATCHED:
            limits = ",".join(each for each in limits.split(",") if not each.startswith("<"))
        found[name] = limits
    return found


if __name__ == "__main__":
    given = sys.argv[1:]
    if given not in ([], ["--beyond"]):
        raise SystemExit(f"make next: {' '.join(given)} is refused: give --beyond or nothing")
    for library, allowed in requirements(beyond=bool(given)).items():
        sys.stdout.write(f"{library}{allowed}\n")
