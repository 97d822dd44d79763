"""How a verb ends when it cannot do what it was asked: one clear line and an exit code.

1  the job failed or was cancelled; a process of ours cannot be kept running
2  something has to change: the command line, a setting, the request
3  the service, or the database, cannot be reached
"""

from __future__ import annotations

UNSUCCESSFUL = 1
MUST_CHANGE = 2
UNREACHABLE = 3


class Trouble(Exception):
    """Ends the command with `lateack: <message>` on standard error."""

    def __init__(self, message: str, exit_code: int = MUST_CHANGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code
