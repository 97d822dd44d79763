"""lateack: an asyncio-native job service. Try as often as needed, take effect once.

What callers and task authors import stands here; everything else is free to change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .app import App
from .context import INJECTED, Context
from .errors import (
    Busy,
    ClientError,
    Conflict,
    DeclarationError,
    InvalidRequest,
    JobCancelled,
    JobFailed,
    JobUnsuccessful,
    JobWasCancelled,
    LateackError,
    NotAllowed,
    NotFound,
    PermanentError,
    Problem,
    Retry,
    SoftTimeLimitExceeded,
    TaskError,
    TransientError,
    Unreachable,
    WaitTimeout,
)
from .models import Event, Job, Step, Submission
from .workflow import chain

if TYPE_CHECKING:
    from .client import Client, SyncClient

__version__ = "0.1.0"

__all__ = [
    "INJECTED",
    "App",
    "Busy",
    "Client",
    "ClientError",
    "Conflict",
    "Context",
    "DeclarationError",
    "Event",
    "InvalidRequest",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobUnsuccessful",
    "JobWasCancelled",
    "LateackError",
    "NotAllowed",
    "NotFound",
    "PermanentError",
    "Problem",
    "Retry",
    "SoftTimeLimitExceeded",
    "Step",
    "Submission",
    "SyncClient",
    "TaskError",
    "TransientError",
    "Unreachable",
    "WaitTimeout",
    "chain",
]


def __getattr__(name: str) -> Any:
    # The clients bring httpx and websockets; a worker that never calls one need not load them.
    if name in ("Client", "SyncClient"):
        from . import client

        return getattr(client, name)
    raise AttributeError(f"module 'lateack' has no attribute {name!r}")
