-- The next of a tenant's failed jobs that can be redriven and never were, oldest first, for redrive_jobs in
-- the same transaction. Those that are free are locked; the others are somebody else's at this moment,
-- and so two runs at once share the work.
-- $1 tenant  $2 task or null  $3 queue or null  $4 tag or null  $5 error code or null
-- $6 ended since or null  $7 ended before or null  $8 after this id  $9 how many
WITH found AS MATERIALIZED (
    SELECT j.id FROM lateack.jobs j
    WHERE j.tenant_id = $1 AND j.id > $8::uuid AND j.error_code IS NOT NULL
      AND j.engine <> 'workflow' AND j.waits_for IS NULL AND j.feeds IS NULL
      AND ($2::text IS NULL OR j.task = $2)
      AND ($3::text IS NULL OR j.queue = $3)
      AND ($4::text IS NULL OR $4 = ANY (j.tags))
      AND ($5::text IS NULL OR j.error_code = $5)
      AND ($6::timestamptz IS NULL OR j.completed_at >= $6)
      AND ($7::timestamptz IS NULL OR j.completed_at < $7)
      AND NOT EXISTS (SELECT FROM lateack.redrives r WHERE r.job_id = j.id)
    ORDER BY j.id LIMIT $9
), free AS MATERIALIZED (
    SELECT j.id FROM lateack.jobs j WHERE j.id IN (SELECT id FROM found)
    ORDER BY j.id FOR UPDATE SKIP LOCKED
)
SELECT found.id, free.id IS NOT NULL AS free FROM found LEFT JOIN free ON free.id = found.id
ORDER BY found.id
