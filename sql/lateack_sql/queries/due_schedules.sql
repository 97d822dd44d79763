-- Schedules whose next tick is due, the longest overdue first, with the clock that decides. Locks
-- nothing: what is decided about them carries the revision that was read here.
-- $1 how many at most
SELECT id, revision, next_due, cron, days, every, anchor, zone, misfire, overlap, expires,
       paused_at IS NOT NULL AS paused, lateack.now() AS now
FROM lateack.schedules
WHERE next_due <= lateack.now()
ORDER BY next_due LIMIT $1
