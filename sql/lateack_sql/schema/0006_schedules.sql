-- Periodic jobs.
--
--   schedules  what is to run, when, and by which rules; next_due is the tick that comes next
--   ticks      what became of each tick: fired, late, skipped and why, missed

CREATE TABLE lateack.schedules (
    id          uuid PRIMARY KEY,
    tenant_id   text NOT NULL,
    name        text COLLATE "C" NOT NULL,
    task        text NOT NULL,
    args        json NOT NULL DEFAULT '[]',
    kwargs      json NOT NULL DEFAULT '{}',
    queue       text,
    priority    smallint,
    max_retries integer,
    expires     double precision,              -- seconds after a tick in which its job has to start
    -- When: a cron expression in a zone, or every so many seconds counted from the anchor.
    cron        text,
    days        text NOT NULL DEFAULT 'either', -- day of month and day of week: one matches, or both
    every       double precision,
    anchor      timestamptz,                   -- null: 1970-01-01Z
    zone        text NOT NULL DEFAULT 'UTC',
    misfire     text NOT NULL DEFAULT 'once',
    overlap     text NOT NULL DEFAULT 'allow',
    -- Whose word it is. declared is the fingerprint of what the code said last: while that stays the
    -- same, an edit holds.
    origin      text NOT NULL,
    app         text,
    declared    bytea,
    edited_at   timestamptz,
    retired_at  timestamptz,                   -- its declaration is gone from the code
    paused_at   timestamptz,
    -- Raised by every change. Whoever decides about ticks carries the one that was read, so that two
    -- deciders, or one that was frozen, cannot both act.
    revision    bigint NOT NULL DEFAULT 1,
    next_due    timestamptz,                   -- null: it has none, and problem says why
    problem     text,
    runs        uuid[] NOT NULL DEFAULT '{}',  -- its newest jobs, of which some may still be live
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL,
    CONSTRAINT one_name_a_tenant UNIQUE (tenant_id, name),
    CONSTRAINT cron_or_interval CHECK ((cron IS NULL) <> (every IS NULL)),
    CONSTRAINT interval_is_not_too_short CHECK (every >= 1),
    CONSTRAINT days_is_known CHECK (days IN ('either', 'both')),
    CONSTRAINT overlap_is_known CHECK (overlap IN ('allow', 'skip')),
    CONSTRAINT origin_is_known CHECK (origin IN ('code', 'api')),
    CONSTRAINT priority_in_range CHECK (priority BETWEEN 0 AND 9)
) WITH (fillfactor = 70);
CREATE INDEX schedules_due ON lateack.schedules (next_due) WHERE next_due IS NOT NULL;

-- I6: the primary key is what makes a tick one job, whoever leads and whatever the clocks say.
CREATE TABLE lateack.ticks (
    schedule_id uuid NOT NULL,
    due_at      timestamptz NOT NULL,
    -- Not null: the row stands for every tick from due_at until then (then not included).
    until       timestamptz,
    outcome     text NOT NULL,
    reason      text,
    job_id      uuid,
    epoch       bigint,                        -- of the leader that decided; null: a run by hand
    decided_at  timestamptz NOT NULL,
    PRIMARY KEY (schedule_id, due_at),
    CONSTRAINT outcome_is_known CHECK (outcome IN ('fired', 'late', 'skipped', 'missed', 'manual')),
    CONSTRAINT job_if_fired CHECK ((job_id IS NOT NULL) = (outcome IN ('fired', 'late', 'manual')))
);
