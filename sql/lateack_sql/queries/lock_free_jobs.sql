-- Lock those of these jobs that nobody has locked. $1 job ids
SELECT id, fence FROM lateack.jobs WHERE id = ANY ($1::uuid[]) ORDER BY id FOR UPDATE SKIP LOCKED
