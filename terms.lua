-- Reads or changes the terms of a shared limiter, in one step. terms.go is its twin.
--
-- KEYS[1]   the terms: a mark, which names the state, a space, and the text (algos.Terms)
-- ARGV[1]   what to do: read, try, set, update, expire, persist, delete
-- ARGV[2]   try, set, update: the new text; expire: how long, ms
-- ARGV[3]   try, set, update: the mark of a state that begins anew
-- Reply     the terms that count afterwards (for delete: those that did), '' if there are none; and 1 if this changed them
-- Writes    KEYS[1]; a TTL that it has stays
local call = redis.call
if ARGV[1] == 'delete' then -- whatever it is
  local stored = redis.pcall('GET', KEYS[1])
  call('DEL', KEYS[1])
  return { type(stored) == 'string' and stored or '', 0 }
end
local stored = call('GET', KEYS[1]) or ''
local kind, text = ARGV[1], ARGV[2]
local mark, terms = string.match(stored, '^(%S*) (.*)$')
if stored ~= '' and not mark then return redis.error_reply('FOREIGN the key holds something that Headgate did not write') end
if kind == 'expire' and stored ~= '' then
  call('PEXPIRE', KEYS[1], text)
elseif kind == 'persist' then
  call('PERSIST', KEYS[1])
elseif kind == 'try' and stored == '' or kind == 'set' and terms ~= text or kind == 'update' and stored ~= '' and terms ~= text then
  if kind ~= 'update' or string.match(terms, '^%S+') ~= string.match(text, '^%S+') then mark = ARGV[3] end
  stored = mark .. ' ' .. text
  call('SET', KEYS[1], stored, 'KEEPTTL')
  return { stored, 1 }
end
return { stored, 0 }
