-- Pause a schedule, or let it go on. Its ticks go on and are recorded as skipped while it is paused.
-- $1 tenant  $2 name  $3 true to pause
UPDATE lateack.schedules s SET
    paused_at = CASE WHEN $3::boolean THEN coalesce(s.paused_at, lateack.now()) END,
    revision = s.revision + ((s.paused_at IS NULL) = $3::boolean)::int
WHERE s.tenant_id = $1 AND s.name = $2
RETURNING s.name
