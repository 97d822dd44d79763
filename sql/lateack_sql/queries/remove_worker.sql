-- This worker has ended. $1 id
DELETE FROM lateack.workers WHERE id = $1
