"""What the broker does in one step. Every key that a script touches is among its KEYS, and those of
one call share a hash tag: a cluster refuses others, or, worse, does not notice."""

from __future__ import annotations

# Take at most ARGV[3] new entries, in the order of KEYS. BLOCK is not allowed in a script.
READ = """
local left = tonumber(ARGV[3])
local taken = {}
for _, key in ipairs(KEYS) do
  if left <= 0 then break end
  local reply = redis.call(
    'XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', left, 'STREAMS', key, '>')
  if reply then
    local entries = reply[1][2]
    left = left - #entries
    taken[#taken + 1] = {key, entries}
  end
end
return taken
"""
# XACK before XDEL, as one step: a crash in between would leave an entry that is pending for ever.
ACK = """
local acked = redis.call('XACK', KEYS[1], ARGV[1], unpack(ARGV, 2))
redis.call('XDEL', KEYS[1], unpack(ARGV, 2))
return acked
"""
# A consumer that still owns something must not go: its entries would be lost to the group.
REMOVE_IDLE = """
local removed = 0
for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local c = {}
  for i = 1, #info, 2 do c[info[i]] = info[i + 1] end
  if c['pending'] == 0 and c['idle'] >= tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], c['name'])
    removed = removed + 1
  end
end
return removed
"""
# How far a stream was read, by the clock of the server that holds it. Nil: no stream, or no group.
DELIVERED = """
if redis.call('EXISTS', KEYS[1]) == 0 then return nil end
for _, info in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local g = {}
  for i = 1, #info, 2 do g[info[i]] = info[i + 1] end
  if g['name'] == ARGV[1] then
    local now = redis.call('TIME')
    return {redis.call('XLEN', KEYS[1]) - g['pending'], g['last-delivered-id'], now[1], now[2]}
  end
end
return nil
"""
