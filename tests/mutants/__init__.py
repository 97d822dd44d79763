"""Every guard that the tests have to miss when it is gone; see mutant.py for what an entry is."""

from __future__ import annotations

from tests.mutants.delivery import DELIVERY
from tests.mutants.leading import LEADING
from tests.mutants.ledger import LEDGER
from tests.mutants.mutant import Mutant

MUTANTS: list[Mutant] = [*LEDGER, *LEADING, *DELIVERY]
