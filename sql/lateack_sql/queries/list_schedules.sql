-- A tenant's schedules by name, with what keeps each from firing. The trouble with a task is looked up as it
-- is now, so that it never outlives its cause.
-- $1 tenant  $2 names or null for all  $3 only those after this name, or null  $4 how many at most
SELECT s.name, s.task, s.args, s.kwargs, s.queue, s.priority, s.max_retries, s.expires, s.cron, s.days, s.every,
       s.anchor, s.zone, s.misfire, s.overlap, s.origin, s.app, s.edited_at, s.retired_at, s.paused_at, s.next_due,
       CASE WHEN s.retired_at IS NULL THEN coalesce(s.problem,
           CASE WHEN t.name IS NULL THEN 'no worker ever registered a task ' || s.task
                ELSE s.task || ' ' || lateack.misfit(t.parameters, s.args::jsonb, s.kwargs::jsonb) END) END AS problem,
       s.created_at, s.updated_at, s.revision,
       last.due_at AS last_due, last.until AS last_until, last.outcome AS last_outcome, last.reason AS last_reason,
       last.job_id AS last_job_id, last.job_status AS last_job_status, last.decided_at AS last_decided_at
FROM lateack.schedules s
LEFT JOIN lateack.tasks t ON t.name = s.task
LEFT JOIN LATERAL (SELECT k.due_at, k.until, k.outcome, k.reason, k.job_id, j.status AS job_status, k.decided_at
                   FROM lateack.ticks k LEFT JOIN lateack.jobs j ON j.id = k.job_id
                   WHERE k.schedule_id = s.id ORDER BY k.due_at DESC LIMIT 1) AS last ON true
WHERE s.tenant_id = $1 AND ($2::text[] IS NULL OR s.name = ANY ($2)) AND ($3::text IS NULL OR s.name > $3)
ORDER BY s.name LIMIT $4
