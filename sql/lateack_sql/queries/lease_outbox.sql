-- Take due rows of the outbox for a while, by moving `due` ahead; publish them, then delete them.
-- A crash in between repeats the publish, which the claim makes harmless. No transaction stays open.
-- $1 seconds until another relay may take them  $2 how many at most
UPDATE lateack.outbox SET due = lateack.now() + make_interval(secs => $1)
WHERE id IN (
    SELECT id FROM lateack.outbox WHERE due <= lateack.now()
    ORDER BY due, id LIMIT $2 FOR UPDATE SKIP LOCKED
)
RETURNING id, job_id, queue, priority, republish
