"""`python -m lateack_cli` is `lateack`."""

from __future__ import annotations

from lateack_cli.main import main

if __name__ == "__main__":
    main()
