-- Retention: what ended well leaves sooner than what failed, so each has an index by age of its own. A
-- shared one would begin with months of failures that every batch of the others had to pass. Each
-- ended row is in one of the two; neither holds a column that changes before the end.
-- Not made concurrently: nothing is released yet, and two migrators at once would make them twice.
-- squawk-ignore require-concurrent-index-deletion
DROP INDEX lateack.jobs_done;
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX jobs_ended_well ON lateack.jobs (completed_at)
    WHERE completed_at IS NOT NULL AND error_code IS NULL;
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX jobs_ended_badly ON lateack.jobs (completed_at)
    WHERE completed_at IS NOT NULL AND error_code IS NOT NULL;
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX ticks_decided ON lateack.ticks (decided_at);
