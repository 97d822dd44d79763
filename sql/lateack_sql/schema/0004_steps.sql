-- Effects exactly once, for what the ledger can reach; and redrive.
--
--   steps  what a job's body did outside: begun, and, once it is known, ended with its result

-- A step whose end is recorded is never run again: later attempts get its result. One that began and
-- has no end is in doubt as soon as its attempt is over.
CREATE TABLE lateack.steps (
    job_id     uuid NOT NULL,
    name       text NOT NULL,
    fence      integer NOT NULL,               -- of the attempt that began it last
    attempt    integer NOT NULL,
    begun      integer NOT NULL DEFAULT 1,     -- how often
    began_at   timestamptz NOT NULL,
    ended_at   timestamptz,
    result     json,
    error      text,                           -- what it raised, when it raised: did it take effect?
    PRIMARY KEY (job_id, name),
    CONSTRAINT result_if_ended CHECK ((ended_at IS NOT NULL) = (result IS NOT NULL))
);
CREATE INDEX steps_open ON lateack.steps (began_at) WHERE ended_at IS NULL;

-- A job that was run again as a new one (redrive) keeps the tokens of the first, so that the outside
-- system still recognises a repeat: the first job of the line, null for the first itself.
ALTER TABLE lateack.jobs ADD COLUMN origin_id uuid;

-- A body that waits for a free process has not started: losing it there costs no attempt (I10).
ALTER TABLE lateack.leases ADD COLUMN waiting boolean NOT NULL DEFAULT false;
