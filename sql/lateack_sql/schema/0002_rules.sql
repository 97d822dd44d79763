-- The rules that the ledger keeps by itself, whoever writes.

-- I2: a terminal row never changes.
CREATE FUNCTION lateack.refuse_change_of_outcome() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'job % is %: a terminal row never changes', OLD.id, OLD.status
        USING ERRCODE = 'restrict_violation';
END $$;
-- AFTER, not BEFORE: a BEFORE trigger would lock each row once more. OF names the columns that
-- make the outcome.
CREATE TRIGGER terminal_is_final
    AFTER UPDATE OF status, fence, attempt, error_code, error_message, error_info, progress,
                    completed_at, result_location ON lateack.jobs
    FOR EACH ROW WHEN (OLD.completed_at IS NOT NULL)
    EXECUTE FUNCTION lateack.refuse_change_of_outcome();

-- I5: what a step's end means for the steps that wait. It runs inside whichever move ended the
-- step, so there is no move that could forget it and no moment in between.
CREATE FUNCTION lateack.feed_join() RETURNS trigger LANGUAGE plpgsql AS $$
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

-- Steps become runnable with an outbox row; a workflow's own row has nothing to run and ends.
CREATE FUNCTION lateack.release_waiting(join_id uuid) RETURNS void LANGUAGE plpgsql AS $$
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

    WITH ended AS (
        UPDATE lateack.jobs SET
            status = 'succeeded', progress = 100, completed_at = lateack.now(), fence = fence + 1
        WHERE waits_for = join_id AND status = 'blocked' AND engine = 'workflow'
        RETURNING id
    )
    INSERT INTO lateack.results (job_id, result)
    SELECT id, result FROM ended, LATERAL (SELECT lateack.gathered(join_id) AS result) AS g
    WHERE result IS NOT NULL;
END $$;

-- What a join hands on: its one result, or the list of them all in the order of their positions.
CREATE FUNCTION lateack.gathered(join_id uuid) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN j.gather THEN all_of_them ELSE all_of_them -> 0 END
    FROM lateack.joins j,
         LATERAL (SELECT json_agg(r.result ORDER BY u.position) AS all_of_them
                  FROM lateack.jobs u LEFT JOIN lateack.results r ON r.job_id = u.id
                  WHERE u.feeds = j.id) AS upstream
    WHERE j.id = join_id
$$;

CREATE TRIGGER step_ended
    AFTER UPDATE OF completed_at ON lateack.jobs
    FOR EACH ROW WHEN (OLD.completed_at IS NULL AND NEW.completed_at IS NOT NULL AND NEW.feeds IS NOT NULL)
    EXECUTE FUNCTION lateack.feed_join();
