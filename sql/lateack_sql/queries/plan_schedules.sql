-- Schedules of a page, by id, to be planned anew: rules of zones may have changed since.
-- $1 after this id, or null  $2 how many at most
SELECT id, revision, next_due, cron, days, every, anchor, zone, problem, lateack.now() AS now
FROM lateack.schedules
WHERE ($1::uuid IS NULL OR id > $1) AND retired_at IS NULL AND (next_due IS NULL OR next_due > lateack.now())
ORDER BY id LIMIT $2
