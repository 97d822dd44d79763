-- Groups and chords: steps side by side, gathered by a row of their own.
--
-- A group is a row of engine 'workflow', like the workflow itself: it waits for the join that its
-- members feed, ends with the list of their results, and feeds whatever join comes next. So a group may
-- stand wherever a step may, in another group too. Members have it as their parent_id.
--
--   abandoned  groups that have failed while members of theirs are still alive

-- Who ends a member may not lock its siblings (two that fail at once would wait for each other), so it
-- only notes that nobody wants them any more; a chore cancels them, locking in order.
CREATE TABLE lateack.abandoned (
    group_id uuid PRIMARY KEY,
    root_id  uuid NOT NULL
);

CREATE OR REPLACE FUNCTION lateack.feed_join() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    j lateack.joins;
BEGIN
    UPDATE lateack.joins SET
        succeeded = succeeded + (NEW.status = 'succeeded')::int,
        failed    = failed    + (NEW.status = 'failed')::int,
        cancelled = cancelled + (NEW.status = 'cancelled')::int
    WHERE id = NEW.feeds
    RETURNING * INTO j;
    IF j.id IS NULL OR j.decided_at IS NOT NULL THEN
        RETURN NULL;
    END IF;
    IF j.rule = 'all' AND NEW.status <> 'succeeded' THEN
        UPDATE lateack.joins SET decided_at = lateack.now() WHERE id = j.id;
        IF j.gather AND j.succeeded + j.failed + j.cancelled < j.total THEN
            INSERT INTO lateack.abandoned (group_id, root_id)
            SELECT id, root_id FROM lateack.jobs WHERE waits_for = j.id AND engine = 'workflow'
            ON CONFLICT DO NOTHING;
        END IF;
        -- Each row that ends here feeds a join of its own: the end runs down the chain.
        UPDATE lateack.jobs SET
            status = CASE NEW.status WHEN 'cancelled' THEN 'cancelled' ELSE 'failed' END,
            error_code = CASE NEW.status WHEN 'failed' THEN 'UpstreamFailed' END,
            error_message = CASE NEW.status WHEN 'failed' THEN
                CASE NEW.error_code WHEN 'UpstreamFailed' THEN NEW.error_message
                     ELSE 'step ' || NEW.task || ' failed: ' || NEW.error_code END END,
            error_info = CASE NEW.status WHEN 'failed' THEN
                CASE NEW.error_code WHEN 'UpstreamFailed' THEN NEW.error_info
                     ELSE jsonb_build_object('type', 'UpstreamFailed', 'step', NEW.task,
                                             'job_id', NEW.id, 'error_code', NEW.error_code) END END,
            fence = fence + 1,
            completed_at = lateack.now()
        WHERE waits_for = j.id AND status = 'blocked';
    ELSIF j.succeeded + j.failed + j.cancelled = j.total THEN
        UPDATE lateack.joins SET decided_at = lateack.now() WHERE id = j.id;
        PERFORM lateack.release_waiting(j.id);
    END IF;
    RETURN NULL;
END $$;

-- A row of engine 'workflow' that is marked immutable ends with its own args: what it stands for was
-- known from the beginning (a group without members).
CREATE OR REPLACE FUNCTION lateack.release_waiting(join_id uuid) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH released AS (
        UPDATE lateack.jobs SET
            status = 'pending', run_at = lateack.now(), runnable_since = lateack.now(),
            enqueued_at = lateack.now()
        WHERE waits_for = join_id AND status = 'blocked' AND engine <> 'workflow'
        RETURNING id, queue, priority
    )
    INSERT INTO lateack.outbox (job_id, queue, priority, due)
    SELECT id, queue, priority, lateack.now() FROM released;

    -- One statement: the ends fire their triggers after it, when the results are there to be read.
    WITH ended AS (
        UPDATE lateack.jobs SET
            status = 'succeeded', progress = 100, completed_at = lateack.now(), fence = fence + 1
        WHERE waits_for = join_id AND status = 'blocked' AND engine = 'workflow'
        RETURNING id, immutable, args
    )
    INSERT INTO lateack.results (job_id, result)
    SELECT id, result
    FROM ended, LATERAL (SELECT CASE WHEN immutable THEN args ELSE lateack.gathered(join_id) END AS result) AS g
    WHERE result IS NOT NULL;
END $$;

-- What a join hands on: its one result, or the list of them all in the order of their positions. Where
-- failures are collected, a member that has no result stands there as what became of it.
CREATE OR REPLACE FUNCTION lateack.gathered(join_id uuid) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN j.gather THEN coalesce(all_of_them, '[]') ELSE all_of_them -> 0 END
    FROM lateack.joins j,
         LATERAL (SELECT json_agg(
                      CASE WHEN u.status IN ('failed', 'cancelled') THEN
                          json_build_object('job_id', u.id, 'status', u.status, 'error_code', u.error_code,
                                            'error_message', u.error_message)
                      ELSE r.result END ORDER BY u.position) AS all_of_them
                  FROM lateack.jobs u LEFT JOIN lateack.results r ON r.job_id = u.id
                  WHERE u.feeds = j.id) AS upstream
    WHERE j.id = join_id
$$;
