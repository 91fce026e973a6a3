"""The browser test is collected only when asked for: `make test PAGE=1`."""

import os

collect_ignore_glob = [] if os.environ.get("PAGE") == "1" else ["test_*.py"]
