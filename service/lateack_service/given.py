"""What handlers are given, told by the names of their parameters: see the wiring in app.py."""

from __future__ import annotations

from litestar.di import NamedDependency
from litestar.params import FromPath

from lateack_core.ground import Ground

from .progress import Hub
from .tenancy import Tenancy

GroundGiven = NamedDependency[Ground]
HubGiven = NamedDependency[Hub]
TenancyGiven = NamedDependency[Tenancy]
# Whoever asks, by the tenancy's rule; to name it is to have it checked.
TenantGiven = NamedDependency[str]
# As it stands in the address; `identifier` reads it.
JobIdGiven = FromPath[str]
