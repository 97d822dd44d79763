-- The ledger: the only store of truth. A map of its tables:
--
--   jobs         one row a job, and one for each workflow. Changed by compare-and-set moves only
--   leases       who runs a job and until when; one row for each running job, none for any other
--   results      what succeeded jobs returned, apart from the hot row
--   attempts     how attempts ended (a first attempt that succeeds leaves none)
--   outbox       what has to be published to the broker, and when
--   joins        what blocked steps of workflows wait for
--   idempotency  (tenant, key) -> job, with the fingerprint of what was asked
--   tasks        what workers can run: queue, parameters, limits
--   queues       what was set for a queue: paused, cap, pending timeout
--   workers      which processes live, and what they serve
--   strays       messages that were found in a stream and are no job of ours
--   leader       who leads, in which epoch, until when
--
-- Nothing here needs a session: no LISTEN, no session advisory lock, no temporary table.

-- The only clock that decides. Tests replace it; nothing says now().
CREATE FUNCTION lateack.now() RETURNS timestamptz
    LANGUAGE sql STABLE PARALLEL SAFE AS 'SELECT statement_timestamp()';

-- PostgreSQL has uuidv7() only since 18.
CREATE FUNCTION lateack.uuid7() RETURNS uuid
    LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT encode(
        set_byte(
            overlay(uuid_send(gen_random_uuid())
                    PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
                    FROM 1 FOR 6),
            6, 112 | (get_byte(uuid_send(gen_random_uuid()), 6) & 15)),
        'hex')::uuid
$$;

CREATE TABLE lateack.jobs (
    id                  uuid PRIMARY KEY,          -- UUIDv7
    tenant_id           text NOT NULL,
    task                text NOT NULL,
    queue               text NOT NULL,
    engine              text NOT NULL DEFAULT 'lateack',   -- 'workflow': never run, it only ends
    priority            smallint NOT NULL DEFAULT 5,
    status              text NOT NULL,
    -- fence goes up with every claim and with every move by anyone but the owner; whoever writes
    -- with an older one writes nothing. attempt is what users see: bodies that started.
    fence               integer NOT NULL DEFAULT 0,
    attempt             integer NOT NULL DEFAULT 0,
    max_retries         integer NOT NULL DEFAULT 3,
    worker_losses       integer NOT NULL DEFAULT 0,
    args                json NOT NULL DEFAULT '[]',        -- json, not jsonb: 1e22 stays what it was
    kwargs              json NOT NULL DEFAULT '{}',
    meta                jsonb,
    tags                text[],
    owner               text,
    external_ref        text,
    external_id         text,                              -- Celery's id, for jobs taken over
    trace               jsonb,
    callback            jsonb,
    limit_key           text,
    unique_key          text,
    -- Workflows. A step waits for one join and feeds one join; position orders a join's results.
    root_id             uuid,
    parent_id           uuid,
    waits_for           uuid,
    feeds               uuid,
    position            integer,
    immutable           boolean NOT NULL DEFAULT false,
    retry_of            uuid,
    ignore_result       boolean NOT NULL DEFAULT false,
    soft_time_limit     real,
    time_limit          real,
    created_at          timestamptz NOT NULL,
    run_at              timestamptz NOT NULL,
    runnable_since      timestamptz,                       -- the pending timeout counts from here
    enqueued_at         timestamptz,                       -- the reconciler counts from here
    expires_at          timestamptz,
    started_at          timestamptz,
    completed_at        timestamptz,
    cancel_requested_at timestamptz,
    progress            real,
    step                text,
    result_location     text,
    error_code          text,
    error_message       text,
    error_info          jsonb,
    CONSTRAINT status_is_known CHECK (status IN
        ('scheduled', 'pending', 'running', 'retrying', 'blocked', 'succeeded', 'failed', 'cancelled')),
    CONSTRAINT engine_is_known CHECK (engine IN ('lateack', 'celery', 'workflow')),
    CONSTRAINT priority_in_range CHECK (priority BETWEEN 0 AND 9),
    CONSTRAINT completed_if_terminal CHECK
        ((status IN ('succeeded', 'failed', 'cancelled')) = (completed_at IS NOT NULL)),
    CONSTRAINT error_if_failed CHECK ((status = 'failed') = (error_code IS NOT NULL))
) WITH (fillfactor = 50);
-- Hot rows stay HOT: no index holds a column that claim or heartbeat changes, in its key or in its
-- predicate. completed_at and error_code change once, at the end.
CREATE INDEX jobs_live ON lateack.jobs (queue, created_at) WHERE completed_at IS NULL;
CREATE INDEX jobs_expiring ON lateack.jobs (expires_at)
    WHERE completed_at IS NULL AND expires_at IS NOT NULL;
CREATE INDEX jobs_done ON lateack.jobs (completed_at) WHERE completed_at IS NOT NULL;
CREATE INDEX jobs_of_tenant ON lateack.jobs (tenant_id, id);
CREATE INDEX jobs_failed ON lateack.jobs (tenant_id, id) WHERE error_code IS NOT NULL;
CREATE INDEX jobs_of_workflow ON lateack.jobs (root_id) WHERE root_id IS NOT NULL;
CREATE INDEX jobs_waiting ON lateack.jobs (waits_for) WHERE waits_for IS NOT NULL;
CREATE INDEX jobs_feeding ON lateack.jobs (feeds) WHERE feeds IS NOT NULL;

-- The primary key is I3: no two leases on one job. Heartbeats write here only, so that a long job
-- costs its own row nothing. Lock order everywhere: jobs by id, then leases by job_id; who takes a
-- lease before its job (the reaper) skips what is locked.
CREATE TABLE lateack.leases (
    job_id    uuid PRIMARY KEY,
    fence     integer NOT NULL,
    worker_id uuid NOT NULL,
    until     timestamptz NOT NULL,
    progress  real,
    step      text
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 10000);

CREATE TABLE lateack.results (
    job_id uuid PRIMARY KEY,
    result json NOT NULL
);

CREATE TABLE lateack.attempts (
    job_id        uuid NOT NULL,
    fence         integer NOT NULL,
    attempt       integer NOT NULL,
    worker_id     uuid,
    started_at    timestamptz,
    ended_at      timestamptz NOT NULL,
    outcome       text NOT NULL,
    error_code    text,
    error_message text,
    PRIMARY KEY (job_id, fence),
    CONSTRAINT outcome_is_known CHECK (outcome IN
        ('succeeded', 'failed', 'retried', 'lost', 'cancelled', 'handed_back'))
);

-- A table of its own: a relay never holds a job's row. Rows are leased by moving due ahead.
CREATE TABLE lateack.outbox (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id    uuid NOT NULL,
    queue     text NOT NULL,
    priority  smallint NOT NULL,
    due       timestamptz NOT NULL,
    -- true: the broker lost it, the job has been runnable all along
    republish boolean NOT NULL DEFAULT false
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 10000);
CREATE INDEX outbox_due ON lateack.outbox (due, id);
CREATE INDEX outbox_job ON lateack.outbox (job_id);

CREATE TABLE lateack.joins (
    id         uuid PRIMARY KEY,
    root_id    uuid NOT NULL,
    rule       text NOT NULL DEFAULT 'all',
    gather     boolean NOT NULL DEFAULT false,    -- true: waiters get the list of all results
    total      integer NOT NULL,
    succeeded  integer NOT NULL DEFAULT 0,
    failed     integer NOT NULL DEFAULT 0,
    cancelled  integer NOT NULL DEFAULT 0,
    decided_at timestamptz,
    CONSTRAINT rule_is_known CHECK (rule IN ('all', 'collect')),
    CONSTRAINT fed_at_most_total CHECK (succeeded + failed + cancelled <= total)
);
CREATE INDEX joins_of_workflow ON lateack.joins (root_id);

CREATE TABLE lateack.idempotency (
    tenant_id   text NOT NULL,
    key         text COLLATE "C" NOT NULL,
    job_id      uuid NOT NULL,
    fingerprint bytea NOT NULL,
    expires_at  timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, key)
);
CREATE INDEX idempotency_job ON lateack.idempotency (job_id);

CREATE TABLE lateack.tasks (
    name            text PRIMARY KEY,
    queue           text NOT NULL,
    priority        smallint NOT NULL,
    parameters      jsonb NOT NULL,
    max_retries     integer NOT NULL,
    acks_late       boolean NOT NULL,
    ignore_result   boolean NOT NULL,
    soft_time_limit real,
    time_limit      real,
    expires         real,
    registered_at   timestamptz NOT NULL
);

CREATE TABLE lateack.queues (
    name            text PRIMARY KEY,
    paused_at       timestamptz,
    max_pending     integer,
    pending_timeout interval,
    weight          integer NOT NULL DEFAULT 1
);

CREATE TABLE lateack.workers (
    id         uuid PRIMARY KEY,
    name       text NOT NULL,
    host       text NOT NULL,
    pid        integer NOT NULL,
    queues     text[] NOT NULL,
    tasks      text[] NOT NULL,
    slots      integer NOT NULL,
    started_at timestamptz NOT NULL,
    seen_at    timestamptz NOT NULL,
    draining   boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);

CREATE TABLE lateack.strays (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stream   text NOT NULL,
    entry_id text NOT NULL,
    fields   jsonb NOT NULL,
    reason   text NOT NULL,
    found_at timestamptz NOT NULL,
    UNIQUE (stream, entry_id)
);

CREATE TABLE lateack.leader (
    name   text PRIMARY KEY,
    holder uuid NOT NULL,
    epoch  bigint NOT NULL,
    until  timestamptz NOT NULL
);
