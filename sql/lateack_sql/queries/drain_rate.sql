-- Jobs that left a queue by ending in the last minute. $1 queue, or null for all
-- Two counts, one for each index of ended jobs.
SELECT (SELECT count(*) FROM lateack.jobs
        WHERE completed_at > lateack.now() - interval '60 seconds' AND error_code IS NULL
          AND ($1::text IS NULL OR queue = $1) AND engine <> 'workflow')
     + (SELECT count(*) FROM lateack.jobs
        WHERE completed_at > lateack.now() - interval '60 seconds' AND error_code IS NOT NULL
          AND ($1 IS NULL OR queue = $1) AND engine <> 'workflow') AS ended
