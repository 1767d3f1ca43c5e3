-- Reads or changes the terms of a shared limiter, in one step. terms.go is its twin.
--
-- KEYS[1]   the terms: a mark, which names the state, a space, and the text (algos.Terms)
-- ARGV[1]   what to do: rate (to read them), try_set_rate, set_rate, update_rate, expire, clear_expire, delete
-- ARGV[2]   …_rate: the new text; expire: how long, ms; delete: 0, then what the last call replied
-- ARGV[3]   …_rate: the mark of a state that begins anew
-- Reply     the terms that count afterwards, '' if there are none, and 1 if this changed them;
--           for delete: where to go on, 0 if nothing is left, and 1
-- Writes    KEYS[1], whose TTL, if it has one, stays. A delete removes it, and then the states, whose keys begin with
--           KEYS[1] and a colon: those that one step of SCAN finds in each call, and none by terms that were set since.
local call = redis.call
local verb, text = ARGV[1], ARGV[2]
if verb == 'delete' then
  if text == '0' then call('DEL', KEYS[1]) end -- whatever it is
  local states = KEYS[1] .. ':'
  local current = string.match(call('GET', KEYS[1]) or '', '^%S+ ')
  current = current and states .. string.sub(current, 1, -2) .. ':'
  local found = call('SCAN', text, 'MATCH', string.gsub(states, '[%*%?%[%]\\]', '\\%0') .. '*', 'COUNT', 500)
  for _, key in ipairs(found[2]) do
    if not current or string.sub(key, 1, #current) ~= current then call('DEL', key) end
  end
  return { found[1], 1 }
end
local stored = call('GET', KEYS[1]) or ''
local mark, terms = string.match(stored, '^(%S*) (.*)$')
if stored ~= '' and not mark then return redis.error_reply('FOREIGN the key holds something that Headgate did not write') end
if verb == 'expire' and stored ~= '' then
  call('PEXPIRE', KEYS[1], text)
elseif verb == 'clear_expire' then
  call('PERSIST', KEYS[1])
elseif verb == 'try_set_rate' and stored == '' or verb == 'set_rate' and terms ~= text
  or verb == 'update_rate' and stored ~= '' and terms ~= text then
  if verb ~= 'update_rate' or string.match(terms, '^%S+') ~= string.match(text, '^%S+') then mark = ARGV[3] end
  stored = mark .. ' ' .. text
  call('SET', KEYS[1], stored, 'KEEPTTL')
  return { stored, 1 }
end
return { stored, 0 }
