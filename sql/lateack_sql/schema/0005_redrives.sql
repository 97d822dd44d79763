-- Redrive: a job that ended badly is run again as a new one, once.
--
--   redrives  the ended job -> the job that runs it again

-- The primary key is what makes it once, whoever asks and how often. It is a table of its own, so that
-- `jobs` needs no unique constraint other than its id.
CREATE TABLE lateack.redrives (
    job_id    uuid PRIMARY KEY,
    new_id    uuid NOT NULL,
    tenant_id text NOT NULL,
    run       uuid,                            -- of many at once; null for a job that was named
    made_at   timestamptz NOT NULL
);
CREATE INDEX redrives_of_run ON lateack.redrives (run, job_id) WHERE run IS NOT NULL;
