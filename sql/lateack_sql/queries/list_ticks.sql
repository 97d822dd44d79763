-- What became of a schedule's ticks, newest first, with the state that their jobs have by now.
-- $1 tenant  $2 name  $3 only those before this time, or null  $4 outcomes or null for all  $5 how many at most
SELECT k.due_at, k.until, k.outcome, k.reason, k.job_id, j.status, k.decided_at
FROM lateack.schedules s
JOIN lateack.ticks k ON k.schedule_id = s.id
LEFT JOIN lateack.jobs j ON j.id = k.job_id
WHERE s.tenant_id = $1 AND s.name = $2
  AND ($3::timestamptz IS NULL OR k.due_at < $3) AND ($4::text[] IS NULL OR k.outcome = ANY ($4))
ORDER BY k.due_at DESC LIMIT $5
