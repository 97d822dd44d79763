"""lateack: an asyncio-native job service. Try as often as needed, take effect once.

What callers and task authors import stands here; everything else is free to change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._waiting import waiting_allowed
from .app import App
from .context import INJECTED, Context
from .effects import NOT_DONE
from .errors import (
    Busy,
    ClientError,
    Conflict,
    DeclarationError,
    InvalidRequest,
    InvalidResult,
    JobCancelled,
    JobFailed,
    JobUnsuccessful,
    JobWasCancelled,
    LateackError,
    LeaseLost,
    NotAllowed,
    NotFound,
    PermanentError,
    Problem,
    ResultTooLarge,
    Retry,
    SoftTimeLimitExceeded,
    TaskError,
    TransactionLost,
    TransientError,
    Unreachable,
    WaitInsideTask,
    WaitTimeout,
)
from .models import Event, Job, Step, Submission
from .schedules import crontab
from .workflow import chain, chord, group

if TYPE_CHECKING:
    from .client import Client, SyncClient

__version__ = "0.1.0"

__all__ = [
    "INJECTED",
    "NOT_DONE",
    "App",
    "Busy",
    "Client",
    "ClientError",
    "Conflict",
    "Context",
    "DeclarationError",
    "Event",
    "InvalidRequest",
    "InvalidResult",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobUnsuccessful",
    "JobWasCancelled",
    "LateackError",
    "LeaseLost",
    "NotAllowed",
    "NotFound",
    "PermanentError",
    "Problem",
    "ResultTooLarge",
    "Retry",
    "SoftTimeLimitExceeded",
    "Step",
    "Submission",
    "SyncClient",
    "TaskError",
    "TransactionLost",
    "TransientError",
    "Unreachable",
    "WaitInsideTask",
    "WaitTimeout",
    "chain",
    "chord",
    "crontab",
    "group",
    "waiting_allowed",
]


def __getattr__(name: str) -> Any:
    # The clients bring httpx and websockets; a worker that never calls one need not load them.
    if name in ("Client", "SyncClient"):
        from . import client

        return getattr(client, name)
    raise AttributeError(f"module 'lateack' has no attribute {name!r}")
