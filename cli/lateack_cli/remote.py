"""Talking to the service from the command line: its errors become one line and an exit code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from lateack import Busy, Problem, Unreachable, WaitTimeout
from lateack.client import SyncClient
from lateack_cli.trouble import MUST_CHANGE, UNREACHABLE, UNSUCCESSFUL, Trouble


@contextlib.contextmanager
def service(url: str, tenant: str | None, timeout: float) -> Iterator[SyncClient]:
    """A client of the service.

    Raises:
        Trouble: the service refused, or gave no answer.
    """
    try:
        client = SyncClient(url, tenant=tenant, timeout=timeout)
    except ValueError as error:
        raise Trouble(f"--url: {error}") from None
    try:
        with client:
            yield client
    except Unreachable as error:
        raise Trouble(f"{client!r}: {error}", UNREACHABLE) from None
    except Busy as error:
        raise Trouble(str(error), UNREACHABLE) from None
    except Problem as error:
        raise Trouble(str(error), MUST_CHANGE) from None
    except WaitTimeout as error:
        raise Trouble(str(error), UNSUCCESSFUL) from None
    except KeyboardInterrupt:
        # The job goes on; only the looking on has ended, as a shell tells it.
        raise Trouble("interrupted", 130) from None
