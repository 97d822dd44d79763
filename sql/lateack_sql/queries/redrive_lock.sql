-- One batch of a run at a time, until the transaction ends: a request that a client had to repeat goes on
-- where the first one is, and counts what it made. $1 tenant  $2 run
SELECT pg_advisory_xact_lock(hashtextextended('lateack.redrive:' || $1::text || ':' || $2::uuid::text, 0))
