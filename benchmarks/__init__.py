"""How fast it is, how soon it learns, and how it compares with other programs."""

import a3c  # noqa: F401 # says in one line what to do where libraries are missing
