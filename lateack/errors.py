"""Every error that lateack raises, as one tree.

LateackError
├── TaskError                      raised by or inside a task
│   ├── TransientError             yours to raise: trying again may help (with autoretry_for)
│   ├── PermanentError             yours to raise: trying again will not help
│   ├── Retry                      yours to raise: try again, after a given time
│   ├── JobCancelled               raised inside a thread or process task that was cancelled
│   ├── SoftTimeLimitExceeded      raised inside a task when its soft limit has passed
│   ├── LeaseLost                  raised by ctx.step, ctx.transaction: the job is another's now
│   ├── TransactionLost            raised by ctx.transaction: the database went away in it
│   └── InvalidResult              raised by ctx.step, ctx.transaction: a result cannot be kept
│       └── ResultTooLarge
├── DeclarationError               a task or a name was declared in a way that cannot work
└── ClientError                    raised by Client and SyncClient
    ├── Unreachable                no answer within the time budget
    ├── Problem                    the service answered with a problem document
    │   ├── InvalidRequest         400, 413, 415, 422: change the request
    │   ├── NotAllowed             401, 403
    │   ├── NotFound               404: unknown, or not yours
    │   ├── Conflict               409: what is there already does not allow it
    │   └── Busy                   429, 503: try again after `retry_after` seconds
    ├── WaitTimeout                the job did not end within the time given
    ├── WaitInsideTask             waited for another job inside a task (permanent, too)
    └── JobUnsuccessful            the job ended without a result
        ├── JobFailed
        └── JobWasCancelled
"""

from __future__ import annotations

from typing import Any


class LateackError(Exception):
    """The root of everything lateack raises."""


class TaskError(LateackError):
    """Raised by a task, or inside one."""


class TransientError(TaskError):
    """Trying again may help: a time-out, a rate limit, a dependency that is away.

    It is retried when the task names it: `autoretry_for=(TransientError,)`.
    """


class PermanentError(TaskError):
    """Trying again will not help; the job fails at once, whatever `autoretry_for` says."""


class Retry(TaskError):
    """Try this job again.

    `after` is a number of seconds; without it the task's own back-off decides. The retry counts
    against `max_retries`; when none is left the job fails with the error that caused it.
    """

    def __init__(self, message: str = "retry requested", *, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


class JobCancelled(TaskError):
    """The job was cancelled. Thread tasks meet it at their next `ctx` call."""


class SoftTimeLimitExceeded(TaskError):
    """The soft limit has passed: clean up and return, or let it end the attempt."""

    def __init__(self, seconds: float | None = None) -> None:
        super().__init__("soft time limit exceeded" + (f" ({seconds:g} s)" if seconds else ""))


class LeaseLost(TaskError):
    """This attempt does not own its job any more: another one does, or it has ended.

    Nothing was written for this attempt, and nothing that it still says is heard.
    """


class TransactionLost(TaskError):
    """The connection of `ctx.transaction()` broke, so whether it was committed is not known here.

    It is known to the ledger: a committed transaction has ended the job, and otherwise it runs
    again. `outage` tells that the database was away, which costs the job no attempt. Let it pass.
    """

    def __init__(self, message: str, *, outage: bool) -> None:
        super().__init__(message)
        self.outage = outage


class InvalidResult(PermanentError):
    """A result cannot be kept as JSON; running the body again would give it again."""


class ResultTooLarge(InvalidResult):
    """A result has more than 1 MiB of JSON: store it elsewhere and return a reference to it."""


class DeclarationError(LateackError):
    """A declaration that cannot work, refused at start rather than at three in the morning."""


class ClientError(LateackError):
    """Raised by `Client` and `SyncClient`."""


class Unreachable(ClientError):
    """The service gave no answer within the time budget."""


class Problem(ClientError):
    """The service refused; carries its RFC 9457 problem document.

    `status` is the HTTP status, `type` the stable name of the problem, `retry_after` seconds or
    None, `document` the whole problem document.
    """

    def __init__(
        self,
        status: int,
        type_: str,
        detail: str,
        *,
        retry_after: float | None = None,
        document: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(f"{detail} [{status} {type_}]")
        self.status = status
        self.type = type_
        self.detail = detail
        self.retry_after = retry_after
        self.document = document or {}


class InvalidRequest(Problem):
    """400, 413, 415 or 422: the request must change; trying again as it is cannot help."""


class NotAllowed(Problem):
    """401 or 403."""


class NotFound(Problem):
    """404: there is no such job, or it is not yours; the service does not tell which."""


class Conflict(Problem):
    """409: what is there already does not allow it; `type` and the message say what.

    The idempotency key was used with other content, the job to be retried has not ended, …
    """


class Busy(Problem):
    """429 or 503: try again after `retry_after` seconds."""


class WaitTimeout(ClientError):
    """The job did not end within the time given. The job itself goes on."""


class WaitInsideTask(ClientError, PermanentError):
    """A task's body would wait for another job and hold its slot meanwhile; the message says what
    to do instead."""


class JobUnsuccessful(ClientError):
    """The job ended without a result. `job` is the job's document."""

    def __init__(self, message: str, job: Any) -> None:
        super().__init__(message)
        self.job = job


class JobFailed(JobUnsuccessful):
    """The job ended `failed`; `job.error_code` says why."""


class JobWasCancelled(JobUnsuccessful):
    """The job ended `cancelled`."""
