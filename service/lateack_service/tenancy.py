"""Who is asking: the tenant of a request, and which addresses may be bound without a guard.

In mode `header` a gateway in front of the service has checked the caller and says who it is in
`X-Tenant-ID`. That is only safe when nobody but the gateway can reach the service, so a bind to
anything but loopback has to be confirmed with LATEACK_TRUST_TENANT_HEADER=1.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

from litestar.connection import ASGIConnection

from lateack.errors import DeclarationError
from lateack.names import tenant_problem
from lateack_core.settings import Settings
from lateack_core.validation import refusal

HEADER = "X-Tenant-ID"
DEFAULT_TENANT = "default"

Connection = ASGIConnection[Any, Any, Any, Any]


class Tenancy:
    """The rule by which this process tells tenants apart."""

    def __init__(self, settings: Settings) -> None:
        self._required = settings.trust_tenant_header

    def tenant_of(self, connection: Connection) -> str:
        """The tenant that a request or a socket belongs to.

        Raises:
            Refused: 401 when the header is missing and required, 422 when it cannot be a name, 403
                when a web page of another site asks a service that listens for this machine alone.
        """
        if not self._required:
            _refuse_foreign_pages(connection)
        names = list(dict.fromkeys(connection.headers.getall(HEADER, [])))
        if not names:
            if self._required:
                raise refusal(
                    401, "tenant-missing", "Who is asking?", f"the header {HEADER} is missing"
                )
            return DEFAULT_TENANT
        if len(names) > 1:
            raise refusal(422, "invalid-tenant", "One tenant only", f"{HEADER} was given twice")
        if reason := tenant_problem(names[0]):
            raise refusal(422, "invalid-tenant", "Not a tenant's name", f"{HEADER}: {reason}")
        return names[0]


def _refuse_foreign_pages(connection: Connection) -> None:
    """Without a gateway, any page open in a browser on this machine could reach the service: by a
    WebSocket, which browsers allow across sites, or by a name that it points at 127.0.0.1."""
    host = connection.headers.get("host", "")
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    origin = connection.headers.get("origin")
    if not _is_local_name(name) or (origin is not None and origin.partition("://")[2] != host):
        raise refusal(
            403,
            "foreign-page",
            "Not from another site",
            "without a trusted gateway the service answers to this machine's own names only, and "
            "to no page of another site; put a gateway in front (LATEACK_TRUST_TENANT_HEADER=1)",
        )


def _is_local_name(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def check_bind(settings: Settings, host: str) -> None:
    """Refuse to listen where anybody could claim to be any tenant.

    Raises:
        DeclarationError: the address is not loopback and the header is not declared trusted.
    """
    if settings.trust_tenant_header or is_loopback(host):
        return
    raise DeclarationError(
        f"{host} is not a loopback address, and whoever reaches it can name any tenant in "
        f"{HEADER}; put a gateway in front that sets the header and say so with "
        "LATEACK_TRUST_TENANT_HEADER=1, or bind to 127.0.0.1"
    )


def is_loopback(host: str) -> bool:
    """Whether every address behind `host` is this machine's own."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise DeclarationError(f"host {host!r} cannot be resolved: {error}") from None
    addresses = [str(entry[4][0]).partition("%")[0] for entry in found]
    return bool(addresses) and all(ipaddress.ip_address(a).is_loopback for a in addresses)
