-- Forget failed groups whose members have been cancelled. $1 group ids
DELETE FROM lateack.abandoned WHERE group_id = ANY ($1::uuid[])
