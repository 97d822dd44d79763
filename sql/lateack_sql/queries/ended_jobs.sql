-- Which of these have ended. $1 job ids
SELECT id FROM lateack.jobs WHERE id = ANY ($1::uuid[]) AND completed_at IS NOT NULL
