-- This worker lives. $1 id  $2 name  $3 host  $4 pid  $5 queues  $6 tasks  $7 slots  $8 draining
INSERT INTO lateack.workers AS w (id, name, host, pid, queues, tasks, slots, started_at, seen_at, draining)
VALUES ($1, $2, $3, $4, $5, $6, $7, lateack.now(), lateack.now(), $8)
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, draining = excluded.draining
