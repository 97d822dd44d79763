-- Before a late publish: what waited for its time becomes pending, and the reconciler's and the
-- pending timeout's clocks start now. A republished job has been runnable all along: only the
-- reconciler's clock is set. A job that somebody has locked waits a round; one that needs no
-- publish any more is returned as gone.
-- $1 job ids  $2 republish
WITH asked AS MATERIALIZED (
    SELECT DISTINCT ON (job_id) job_id, republish
    FROM unnest($1::uuid[], $2::boolean[]) AS o (job_id, republish) ORDER BY job_id, republish
), ready AS MATERIALIZED (
    SELECT j.id, asked.republish
    FROM lateack.jobs j JOIN asked ON j.id = asked.job_id
    WHERE j.status IN ('pending', 'scheduled', 'retrying') AND j.run_at <= lateack.now()
    ORDER BY j.id FOR UPDATE OF j SKIP LOCKED
), marked AS (
    UPDATE lateack.jobs j SET
        status = 'pending', enqueued_at = lateack.now(),
        runnable_since = CASE WHEN ready.republish THEN coalesce(j.runnable_since, lateack.now())
                              ELSE lateack.now() END
    FROM ready WHERE j.id = ready.id
    RETURNING j.id
)
SELECT asked.job_id, m.id IS NOT NULL AS ready,
       j.id IS NULL OR j.status NOT IN ('pending', 'scheduled', 'retrying') AS gone
FROM asked
LEFT JOIN marked m ON m.id = asked.job_id
LEFT JOIN lateack.jobs j ON j.id = asked.job_id
