"""The application: its routes, and what they are given."""

from __future__ import annotations

from litestar import Litestar
from litestar.connection import ASGIConnection
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin

from lateack import __version__
from lateack_core.ground import Ground

from .dead import count_dead, list_dead, list_steps
from .events import stream_events, watch_one
from .health import Readiness, livez, readyz
from .jobs import attempts, cancel, list_jobs, show, submit, submit_batch
from .multiplex import watch_many
from .problems import answer
from .progress import Hub
from .queues import list_queues, list_tasks
from .redrive import retry, retry_many
from .schedules import HANDLERS as SCHEDULES
from .tenancy import Tenancy


def make_app(ground: Ground, hub: Hub, readiness: Readiness, tenancy: Tenancy) -> Litestar:
    """The ASGI application over one ground. It starts and stops nothing by itself."""

    def tenant(request: ASGIConnection) -> str:  # type: ignore[type-arg]
        return tenancy.tenant_of(request)

    return Litestar(
        route_handlers=[
            submit,
            submit_batch,
            show,
            list_jobs,
            cancel,
            retry,
            retry_many,
            attempts,
            stream_events,
            watch_one,
            watch_many,
            list_queues,
            list_tasks,
            list_dead,
            count_dead,
            list_steps,
            *SCHEDULES,
            livez,
            readyz,
        ],
        dependencies={
            "ground": _given(ground),
            "hub": _given(hub),
            "readiness": _given(readiness),
            "tenancy": _given(tenancy),
            "tenant": Provide(tenant, sync_to_thread=False),
        },
        exception_handlers={Exception: answer},
        openapi_config=OpenAPIConfig(
            title="lateack",
            version=__version__,
            description="Submit jobs, watch them live, see each end once.",
            path="/schema",
            render_plugins=[JsonRenderPlugin(path="/openapi.json")],
        ),
        # Sizes are ours to check, with answers of ours; logging is the process's.
        request_max_body_size=None,
        logging_config=None,
    )


def _given(value: object) -> Provide:
    return Provide(lambda: value, sync_to_thread=False)
