-- lateack.submit(): a job out of SQL, inside the caller's own transaction, from any language.
--
--     BEGIN;
--     INSERT INTO invoices …;
--     SELECT lateack.submit('billing.send_invoice', kwargs => '{"number": 17}');
--     COMMIT;      -- both, or neither
--
-- Nothing is published before the commit: the row in the outbox is due at once, and a relay takes it
-- within half a second of it. The job counts against a queue's cap and is never refused by it.
--
-- Keys. In READ COMMITTED a second submit with the same key waits for the first one's transaction,
-- then returns its job; in REPEATABLE READ and above it may raise 40001 (serialization_failure), as any
-- write may there: run the transaction again. A transaction that stays open after a submit with a key
-- makes others wait for that key. What a key stands for is compared in the form that SQL knows
-- (numbers as numeric, objects as jsonb); the HTTP door compares bytes of its own. So one and the same key
-- is used through one door: through the other it is a conflict, never silently another job.
--
-- Rights. SECURITY INVOKER, and granted to nobody, since whoever calls it chooses the tenant:
--
--     GRANT USAGE ON SCHEMA lateack TO app;
--     GRANT SELECT ON lateack.tasks TO app;
--     GRANT SELECT, INSERT ON lateack.idempotency TO app;
--     GRANT INSERT ON lateack.jobs, lateack.outbox TO app;
--     GRANT EXECUTE ON FUNCTION lateack.submit TO app;

CREATE FUNCTION lateack.refuse(message text, hint text, code text DEFAULT '22023') RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = code, MESSAGE = 'lateack.submit: ' || message, HINT = hint;
END $$;

-- Why arguments do not fit a task's parameters, null when they do. The twin of lateack/arguments.py;
-- a test holds them against each other.
CREATE FUNCTION lateack.misfit(parameters jsonb, args jsonb, kwargs jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    positional text[];
    given      text[];
    by_name    text[];
    found      text;
BEGIN
    positional := ARRAY(SELECT p ->> 'name' FROM jsonb_array_elements(parameters) WITH ORDINALITY AS e (p, n)
                        WHERE p ->> 'kind' IN ('positional', 'either') ORDER BY n);
    by_name := ARRAY(SELECT p ->> 'name' FROM jsonb_array_elements(parameters) AS e (p)
                     WHERE p ->> 'kind' IN ('either', 'keyword'));
    given := positional[1:jsonb_array_length(args)];
    IF jsonb_array_length(args) > cardinality(positional) AND NOT parameters @> '[{"kind": "args"}]' THEN
        RETURN format('takes at most %s positional arguments, got %s',
                      cardinality(positional), jsonb_array_length(args));
    END IF;

    SELECT string_agg(k, ', ' ORDER BY k COLLATE "C") INTO found FROM jsonb_object_keys(kwargs) AS k
    WHERE k = ANY (given) AND k = ANY (by_name);
    IF found IS NOT NULL THEN
        RETURN format('got %s both by position and by name', found);
    END IF;

    SELECT string_agg(k, ', ' ORDER BY k COLLATE "C") INTO found FROM jsonb_object_keys(kwargs) AS k
    WHERE k <> ALL (by_name);
    IF found IS NOT NULL AND NOT parameters @> '[{"kind": "kwargs"}]' THEN
        RETURN 'has no parameter named ' || found;
    END IF;

    SELECT CASE count(*) WHEN 1 THEN 'misses the argument ' ELSE 'misses the arguments ' END
           || string_agg(p ->> 'name', ', ' ORDER BY n)
    INTO found
    FROM jsonb_array_elements(parameters) WITH ORDINALITY AS e (p, n)
    WHERE (p ->> 'required')::boolean AND p ->> 'name' <> ALL (given)
      AND (p ->> 'kind' = 'positional' OR NOT kwargs ? (p ->> 'name'));
    RETURN found;
END $$;

-- A json text as jsonb: what cannot be stored and read back unchanged is refused in our words.
CREATE FUNCTION lateack.readable(what text, given json) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    value jsonb;
BEGIN
    BEGIN
        value := given::jsonb;
    EXCEPTION WHEN untranslatable_character OR invalid_text_representation THEN
        PERFORM lateack.refuse(what || ' holds a NUL character or half of a surrogate pair',
                               'remove \u0000 and unpaired \ud800 to \udfff from the text');
    END;
    IF jsonb_path_exists(value, 'strict $.**{64} ? (@.type() == "array" || @.type() == "object")') THEN
        PERFORM lateack.refuse(what || ' is nested more than 64 levels deep', 'flatten it, or pass a reference to it');
    END IF;
    IF jsonb_path_exists(value, 'strict $.** ? (@.type() == "number" && (@ > 1.7976931348623157e308 || @ < -1.7976931348623157e308))') THEN
        PERFORM lateack.refuse(what || ' holds a number that is not finite as a double', 'pass it as text');
    END IF;
    RETURN value;
END $$;

-- Submit a job; returns its id, or with a known key the id of the job that the key stands for.
-- Raises 22023 for what has to change, 42704 for a task that nobody registered, 23505 for a key that
-- belongs to other content; the HINT says what to do.
CREATE FUNCTION lateack.submit(
    task            text,
    args            json DEFAULT '[]',
    kwargs          json DEFAULT '{}',
    tenant          text DEFAULT 'default',
    queue           text DEFAULT NULL,
    priority        integer DEFAULT NULL,
    countdown       interval DEFAULT NULL,
    eta             timestamptz DEFAULT NULL,
    expires         timestamptz DEFAULT NULL,
    max_retries     integer DEFAULT NULL,
    idempotency_key text DEFAULT NULL,
    tags            text[] DEFAULT NULL,
    meta            jsonb DEFAULT NULL,
    owner           text DEFAULT NULL,
    external_ref    text DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql VOLATILE SECURITY INVOKER AS $$
#variable_conflict use_column
DECLARE
    t         lateack.tasks;
    given     jsonb;
    named     jsonb;
    at        timestamptz := lateack.now();
    start     timestamptz;
    problem   text;
    print     bytea;
    known     lateack.idempotency;
    new_id    uuid := lateack.uuid7();
    ten_years CONSTANT interval := '3660 days';
BEGIN
    args := coalesce(submit.args, '[]');
    kwargs := coalesce(submit.kwargs, '{}');
    tags := coalesce(submit.tags, '{}');
    meta := coalesce(submit.meta, '{}');

    SELECT * INTO t FROM lateack.tasks AS r WHERE r.name = submit.task;
    IF t.name IS NULL THEN
        PERFORM lateack.refuse(format('no worker ever registered a task %L', left(submit.task, 200)),
            'start a worker that has it (lateack worker -A module:app), or correct the name', '42704');
    END IF;
    IF json_typeof(submit.args) <> 'array' OR json_typeof(submit.kwargs) <> 'object' THEN
        PERFORM lateack.refuse('args is a JSON array and kwargs a JSON object',
            format('got %s and %s', json_typeof(submit.args), json_typeof(submit.kwargs)));
    END IF;
    IF octet_length(submit.args::text) + octet_length(submit.kwargs::text) > 65536 THEN
        PERFORM lateack.refuse('args and kwargs may have 65536 bytes of JSON',
            'store the data elsewhere and pass a reference to it');
    END IF;
    given := lateack.readable('args', submit.args);
    named := lateack.readable('kwargs', submit.kwargs);
    problem := lateack.misfit(t.parameters, given, named);
    IF problem IS NOT NULL THEN
        PERFORM lateack.refuse(submit.task || ' ' || problem,
            format('its parameters are: %s', (SELECT string_agg(p ->> 'name', ', ')
                                              FROM jsonb_array_elements(t.parameters) AS e (p))));
    END IF;

    IF submit.tenant IS NULL OR submit.tenant !~ '^[A-Za-z0-9][A-Za-z0-9_.:@-]{0,127}$' THEN
        PERFORM lateack.refuse('that cannot be a tenant''s name',
            '1 to 128 of the characters A-Z a-z 0-9 _ . : @ -, a letter or digit first');
    END IF;
    IF submit.queue !~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$' THEN
        PERFORM lateack.refuse('that cannot be a queue''s name',
            '1 to 64 of the characters A-Z a-z 0-9 _ . -, a letter or digit first');
    END IF;
    IF submit.priority NOT BETWEEN 0 AND 9 THEN
        PERFORM lateack.refuse('priority is 0 to 9, got ' || submit.priority, 'higher runs first');
    END IF;
    IF submit.max_retries NOT BETWEEN 0 AND 100000 THEN
        PERFORM lateack.refuse('max_retries is 0 to 100000, got ' || submit.max_retries, '0 is one attempt');
    END IF;
    IF submit.countdown IS NOT NULL AND submit.eta IS NOT NULL THEN
        PERFORM lateack.refuse('give countdown or eta, not both', 'countdown counts from now');
    END IF;
    IF submit.countdown NOT BETWEEN interval '0' AND ten_years THEN
        PERFORM lateack.refuse('countdown is from 0 to ten years', 'leave it out to run at once');
    END IF;
    IF submit.eta NOT BETWEEN '2000-01-01Z' AND at + ten_years
       OR submit.expires NOT BETWEEN '2000-01-01Z' AND at + ten_years THEN
        PERFORM lateack.refuse('eta and expires are between the year 2000 and ten years from now', 'correct the year');
    END IF;
    IF cardinality(submit.tags) > 20 OR EXISTS (SELECT FROM unnest(submit.tags) AS tag
                                         WHERE tag IS NULL OR length(tag) NOT BETWEEN 1 AND 200) THEN
        PERFORM lateack.refuse('a job has 20 tags at most, of 1 to 200 characters', 'shorten the list');
    END IF;
    IF length(submit.owner) NOT BETWEEN 1 AND 200 OR length(submit.external_ref) NOT BETWEEN 1 AND 200 THEN
        PERFORM lateack.refuse('owner and external_ref have 1 to 200 characters', 'shorten it, or leave it out');
    END IF;
    IF jsonb_typeof(submit.meta) <> 'object' OR octet_length(submit.meta::text) > 4096 THEN
        PERFORM lateack.refuse('meta is a JSON object of 4096 bytes at most', 'pass a reference instead');
    END IF;

    IF submit.idempotency_key IS NOT NULL THEN
        IF length(submit.idempotency_key) NOT BETWEEN 1 AND 255
           OR submit.idempotency_key <> btrim(submit.idempotency_key)
           OR submit.idempotency_key ~ '[\u0001-\u001f\u007f-\u00a0\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff]' THEN
            PERFORM lateack.refuse('that cannot be an idempotency key',
                '1 to 255 printable characters, no blank at either end');
        END IF;
        -- Its own first bytes: it never equals a fingerprint that was made at the HTTP door.
        print := 'sql:'::bytea || sha256(convert_to(jsonb_build_object(
            'task', submit.task, 'args', given, 'kwargs', named, 'queue', submit.queue,
            'priority', submit.priority, 'max_retries', submit.max_retries,
            'countdown', extract(epoch FROM submit.countdown), 'eta', extract(epoch FROM submit.eta),
            'expires', extract(epoch FROM submit.expires), 'tags', to_jsonb(submit.tags),
            'meta', submit.meta, 'owner', submit.owner, 'external_ref', submit.external_ref)::text, 'UTF8'));
        LOOP
            INSERT INTO lateack.idempotency AS i (tenant_id, key, job_id, fingerprint, expires_at)
            VALUES (submit.tenant, submit.idempotency_key, new_id, print, at + interval '24 hours')
            ON CONFLICT DO NOTHING;
            EXIT WHEN FOUND;
            -- A statement of its own: it sees what was committed while the insert waited.
            SELECT * INTO known FROM lateack.idempotency AS i
            WHERE i.tenant_id = submit.tenant AND i.key = submit.idempotency_key;
            CONTINUE WHEN NOT FOUND;
            IF known.fingerprint <> print THEN
                PERFORM lateack.refuse(
                    format('the idempotency key belongs to job %s, which has other content', known.job_id),
                    'use a new key, or send exactly what was sent first, through the same door (SQL or HTTP)',
                    '23505');
            END IF;
            RETURN known.job_id;
        END LOOP;
    END IF;

    start := coalesce(submit.eta, at + submit.countdown, at);
    INSERT INTO lateack.jobs AS j (
        id, tenant_id, task, queue, priority, status, args, kwargs, max_retries, created_at, run_at,
        runnable_since, enqueued_at, expires_at, tags, meta, owner, external_ref, ignore_result)
    VALUES (
        new_id, submit.tenant, submit.task, coalesce(submit.queue, t.queue), coalesce(submit.priority, t.priority),
        CASE WHEN start > at THEN 'scheduled' ELSE 'pending' END, submit.args, submit.kwargs,
        coalesce(submit.max_retries, t.max_retries), at, start, CASE WHEN start <= at THEN at END, at,
        coalesce(submit.expires, at + make_interval(secs => t.expires)), nullif(submit.tags, '{}'),
        nullif(submit.meta, '{}'), submit.owner, submit.external_ref, t.ignore_result);
    INSERT INTO lateack.outbox (job_id, queue, priority, due)
    VALUES (new_id, coalesce(submit.queue, t.queue), coalesce(submit.priority, t.priority), start);
    RETURN new_id;
END $$;

REVOKE ALL ON FUNCTION lateack.submit FROM PUBLIC;
