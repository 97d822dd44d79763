"""Whether this process lives, and whether it should be given work."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from litestar import HttpMethod, Response, route
from litestar.di import NamedDependency

from lateack_core.ground import Ground

from .problems import json_response


class Readiness:
    """Reasons against sending requests here. It turns negative before anything is closed."""

    def __init__(self, ground: Ground, beside: Sequence[Ground] = ()) -> None:
        self._ground = ground
        # Of what runs in the same process, such as a scheduler: it is of no use without it.
        self._beside = beside
        self.registered = False
        self.stopping = False

    def reasons(self) -> list[str]:
        """One sentence each; empty when the process is ready."""
        found = self._ground.troubles()
        for ground in self._beside:
            found += [reason for reason in ground.troubles() if reason not in found]
        if not self.registered:
            found.append("the tasks of this service are not registered yet")
        if self.stopping and "stopping" not in found:
            found.append("stopping")
        return found


@route("/livez", http_method=[HttpMethod.GET, HttpMethod.HEAD], summary="The process lives")
async def livez() -> Response[bytes]:
    """200 for as long as the event loop turns."""
    return json_response(b'{"status":"alive"}')


@route("/readyz", http_method=[HttpMethod.GET, HttpMethod.HEAD], summary="Send requests here")
async def readyz(readiness: NamedDependency[Readiness]) -> Response[bytes]:
    """200, or 503 with the reasons. A broker that is away is none: jobs are still accepted."""
    reasons = readiness.reasons()
    body = {"status": "ready" if not reasons else "not ready", "reasons": reasons}
    return json_response(msgspec.json.encode(body), status=503 if reasons else 200)
