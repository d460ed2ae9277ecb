"""docs/bad-input.md says what is said."""

from __future__ import annotations

import re

from tests import bad_inputs
from tests.clusters import REPOSITORY


def without_quotes(text: str) -> list[str]:
    """The lines without the quotes that argparse sets differently from version to version."""
    return text.replace("'", "").splitlines()


def test_every_bad_input_of_the_page_is_refused_with_these_words() -> None:
    page = bad_inputs.page()
    assert without_quotes(page) == without_quotes(bad_inputs.PAGE.read_text()), (
        "write it anew: python -m tests.bad_inputs"
    )
    rows = re.findall(r"^\| `.*\| (\d+) \|$", page, re.MULTILINE)
    assert len(rows) == sum(map(len, bad_inputs.CASES.values())) > 80
    assert set(rows) == {"2"}


def test_the_readme_leads_to_the_page() -> None:
    assert "(docs/bad-input.md)" in (REPOSITORY / "README.md").read_text()
