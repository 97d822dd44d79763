"""The promises, one function each: what in the evidence breaks it.

jobs      accepted, ended, one outcome, one job a key and a tick
attempts  attempts and bodies are explained
effects   transactions, steps and chains take effect once
system    tenants, callers, processes, and what is left at the end
"""

from __future__ import annotations

from lateack_cli.storm.evidence import Rule

from . import attempts, effects, jobs, system

RULES: tuple[Rule, ...] = (*jobs.RULES, *attempts.RULES, *effects.RULES, *system.RULES)
