-- Jobs that left a queue by ending in the last minute. $1 queue, or null for all
SELECT count(*) AS ended
FROM lateack.jobs
WHERE completed_at > lateack.now() - interval '60 seconds' AND ($1::text IS NULL OR queue = $1)
  AND engine <> 'workflow'
