"""`python -m antipgd.cli`."""

import sys

from antipgd.cli import main

sys.exit(main())
