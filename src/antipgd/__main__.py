"""`python -m antipgd`."""

import sys

from antipgd.cli import main

sys.exit(main())
