"""What `lateack chaos` does: a fleet, a storm over it, and the proof that nothing was lost.

plan      which faults come when; drawn from the seed
mix       which jobs are submitted when; drawn from the seed
fleet     the processes, and servers that they reach through proxies
proxy     connections that can be cut, refused, held, delayed, deafened
faults    how each fault is done and undone
workload  submits the mix, looks at jobs, pries into another tenant's
tasks     what the workers run; outside: the system that steps take effect in
history   every accept, claim, effect and finish, as a line of JSON
snapshot  what the ledger and the broker hold at the end
checker   a pure function over (history, snapshot): what was violated; rules in `rules`
report    counts, and the story of a job that was wronged
run       all of it, in order
"""

from __future__ import annotations
