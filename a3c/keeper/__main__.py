"""`python -m a3c.keeper`: see `a3c.keeper.keeper`."""

import sys

from a3c.keeper.keeper import main

sys.exit(main())
