-- How many jobs wait in each queue, runnable and with nobody. $1 queues, or null for all
SELECT queue, count(*) AS pending
FROM lateack.jobs
WHERE completed_at IS NULL AND status = 'pending' AND ($1::text[] IS NULL OR queue = ANY ($1))
GROUP BY queue
