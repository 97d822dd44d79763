-- Put back jobs whose task this worker does not have, for another one: an outbox row each, the
-- job itself unchanged. A row for every hint that was read, though there may be one already: that one
-- may be the very row whose hint was read, published and about to be deleted.
-- $1 job ids  $2 seconds until they are published again
INSERT INTO lateack.outbox (job_id, queue, priority, due, republish)
SELECT id, queue, priority, lateack.now() + make_interval(secs => d.delay), true
FROM unnest($1::uuid[], $2::float8[]) AS d (job_id, delay) JOIN lateack.jobs j ON j.id = d.job_id
WHERE j.status = 'pending'
