-- One tenant's limits, counted in Redis: everything that a replica has to say of the tenant, in one atomic step.
--
-- KEYS[1]: "<namespace>:{<tenant>}"; all keys of the tenant begin with it and share its hash slot:
--   :minute   hash    totals of the window, `r` requests, `i` input, `u` uncached input, `o` output; the same of each slot: `r<slot>` …
--   :slots    list    numbers of the slots that have counts, oldest first
--   :leases   zset    id of a running request -> when its lease ends (ms)
--   :holds    hash    id of a running request -> what it has reserved
--   :d<day> :m<month> hashes  `t` tokens and `n` nano-USD spent or reserved; `b`: the ledger's sum is in it
--   :applied:<replica>  the last batch of that replica that was applied
-- ARGV[1]: JSON {replica, seq, exact, renew, loose, lease_ms}. `exact` (settlements) is applied once for each `seq`, however often it
-- arrives; `renew` has the ids of requests that run; `loose` is applied whenever it arrives.
-- Returns the answers to `loose`, separated by `;`, as decimal numbers separated by spaces.
--
-- Invariant: in no 60 seconds of the server's clock is more counted than allowed. The clock may jump: what is counted for the future
-- then is counted for now, so that it blocks for one window at most; so with leases.

local call, floor, ceil, format = redis.call, math.floor, math.ceil, string.format
local SLOT_MS, NUM_SLOTS = 250, 240
local BACKWARD_SLOTS = 8  -- a clock that was set back less than that just stands still
local WINDOW_TTL_MS, DAY_TTL_S, MONTH_TTL_S, REPLICA_TTL_S = 90000, 3 * 86400, 40 * 86400, 2 * 86400
local KINDS = {'r', 'i', 'u', 'o'}

local base, input = KEYS[1], cjson.decode(ARGV[1])
local MINUTE, SLOTS, LEASES, HOLDS = base .. ':minute', base .. ':slots', base .. ':leases', base .. ':holds'
local time = call('TIME')
local now_s = tonumber(time[1])
local now_ms = now_s * 1000 + floor(tonumber(time[2]) / 1000)
local slot = floor(now_ms / SLOT_MS)
local totals, newest, is_changed = {0, 0, 0, 0}, nil, false

local function int(number)  -- all digits, where Lua would write 1e+15
  return format('%.0f', number)
end

local function of_slot(number)
  return 'r' .. number, 'i' .. number, 'u' .. number, 'o' .. number
end

local function drop(number)
  local amounts = call('HMGET', MINUTE, of_slot(number))
  call('HDEL', MINUTE, of_slot(number))
  return amounts
end

local function open_slot()
  if newest ~= slot then
    call('RPUSH', SLOTS, slot)
    local r, i, u, o = of_slot(slot)
    call('HSET', MINUTE, r, 0, i, 0, u, 0, o, 0)
    newest, is_changed = slot, true
  end
end

-- Counts more, or less, in a slot, as long as that is in the window.
local function add(number, r, i, u, o)
  local more = {r, i, u, o}
  if number < slot - NUM_SLOTS or (r == 0 and i == 0 and u == 0 and o == 0) then return end
  local amounts = call('HMGET', MINUTE, of_slot(number))
  if not amounts[1] then return end
  for kind = 1, 4 do
    totals[kind] = totals[kind] + more[kind]
    amounts[kind] = int(tonumber(amounts[kind] or 0) + more[kind])
  end
  local r, i, u, o = of_slot(number)
  call('HSET', MINUTE, r, amounts[1], i, amounts[2], u, amounts[3], o, amounts[4])
  is_changed = true
end

local function roll()
  newest = tonumber(call('LINDEX', SLOTS, -1))
  if not newest then return end
  if newest < slot - NUM_SLOTS then
    call('DEL', MINUTE, SLOTS)
    newest = nil
    return
  end
  for kind, total in ipairs(call('HMGET', MINUTE, 'r', 'i', 'u', 'o')) do
    totals[kind] = tonumber(total or 0)
  end
  if newest > slot then
    if newest - slot <= BACKWARD_SLOTS then
      slot = newest
    else
      local moved = {0, 0, 0, 0}
      while newest and newest > slot do
        call('RPOP', SLOTS)
        for kind, amount in ipairs(drop(newest)) do moved[kind] = moved[kind] + tonumber(amount or 0) end
        newest = tonumber(call('LINDEX', SLOTS, -1))
      end
      open_slot()
      for kind = 1, 4 do totals[kind] = totals[kind] - moved[kind] end  -- `add` counts them again
      add(slot, unpack(moved))
    end
  end
  local oldest = tonumber(call('LINDEX', SLOTS, 0))
  while oldest and oldest < slot - NUM_SLOTS do
    call('LPOP', SLOTS)
    for kind, amount in ipairs(drop(oldest)) do totals[kind] = totals[kind] - tonumber(amount or 0) end
    is_changed = true
    oldest = tonumber(call('LINDEX', SLOTS, 0))
  end
end

local function month_of(day)  -- months since the year 0, of days since 1970
  local shifted = day + 719468
  local era = floor(shifted / 146097)
  local of_era = shifted - era * 146097
  local year = floor((of_era - floor(of_era / 1460) + floor(of_era / 36524) - floor(of_era / 146096)) / 365)
  local of_year = of_era - (365 * year + floor(year / 4) - floor(year / 100))
  local march = floor((5 * of_year + 2) / 153)
  local month = march < 10 and march + 3 or march - 9
  return (year + era * 400 + (month <= 2 and 1 or 0)) * 12 + month - 1
end

local function spend(day, month, tokens, nano_usd)
  if tokens == 0 and nano_usd == 0 then return end
  for _, window in ipairs({{base .. ':d' .. day, DAY_TTL_S}, {base .. ':m' .. month, MONTH_TTL_S}}) do
    local is_new = tokens ~= 0 and call('HINCRBY', window[1], 't', int(tokens)) == tokens
    is_new = nano_usd ~= 0 and call('HINCRBY', window[1], 'n', int(nano_usd)) == nano_usd or is_new
    if is_new then call('EXPIRE', window[1], window[2]) end
  end
end

local function spent_in(day, month)  -- tokens of day and month, nano-USD of day and month
  local of_day, of_month = call('HMGET', base .. ':d' .. day, 't', 'n'), call('HMGET', base .. ':m' .. month, 't', 'n')
  return {tonumber(of_day[1] or 0), tonumber(of_month[1] or 0), tonumber(of_day[2] or 0), tonumber(of_month[2] or 0)}
end

-- Of `wanted` output tokens, those that all budgets have room for beside the input. `limits` are in the order of `spent_in`, -1: none.
local function affordable(wanted, spent, limits, num_input, input_nano, output_femto, is_priced)
  local num = wanted
  for index = 1, 2 do
    if limits[index] >= 0 then num = math.min(num, limits[index] - spent[index] - num_input) end
  end
  if is_priced then
    for index = 3, 4 do
      local rest = limits[index] - spent[index] - input_nano
      if limits[index] >= 0 then
        if rest < 0 then
          num = math.min(num, 0)
        elseif output_femto > 0 then
          num = math.min(num, floor(rest * 1e6 / output_femto))
        end
      end
    end
  end
  return num
end

local function hold_of(id)
  local packed = call('HGET', HOLDS, id)
  return packed and cmsgpack.unpack(packed)
end

local function keep(id, hold)
  call('HSET', HOLDS, id, cmsgpack.pack(hold))
end

local function lease(id)
  call('ZADD', LEASES, int(now_ms + input.lease_ms), id)
end

local function expire_late()  -- what runs is in use, however long it does
  call('EXPIRE', LEASES, MONTH_TTL_S)
  call('EXPIRE', HOLDS, MONTH_TTL_S)
end

-- Replaces what `id` has reserved by what it used. One that holds nothing (any more) is charged in full to `day` and `month`.
local function settle(id, num_input, num_cached, num_output, nano_usd, day, month, is_lost)
  call('ZREM', LEASES, id)
  local hold = hold_of(id)
  if not hold then return spend(day, month, num_input + num_output, nano_usd) end
  call('HDEL', HOLDS, id)
  local unused = hold.charged - num_output
  local of_last = math.max(0, math.min(unused, hold.last_charge))
  add(
    hold.slot, num_input == 0 and not is_lost and -1 or 0, num_input - hold.input, num_input - num_cached - hold.uncached,
    math.min(0, of_last - unused)
  )
  add(hold.slot_of_last, 0, 0, 0, -of_last)
  if unused < 0 then
    open_slot()
    add(slot, 0, 0, 0, -unused)
  end
  spend(hold.day, hold.month, num_input + num_output - hold.tokens, nano_usd - hold.nano_usd)
end

local function reap()  -- requests of replicas that are gone: whatever they had reserved comes back
  for _, id in ipairs(call('ZRANGEBYSCORE', LEASES, '-inf', int(now_ms))) do
    settle(id, 0, 0, 0, 0, 0, 0, true)
  end
  if input.lease_ms == 0 then return end
  local most = int(now_ms + input.lease_ms + BACKWARD_SLOTS * SLOT_MS)
  for _, id in ipairs(call('ZRANGEBYSCORE', LEASES, '(' .. most, '+inf')) do lease(id) end
end

local function wait_ms(kind, excess)
  for _, number in ipairs(call('LRANGE', SLOTS, 0, -1)) do
    excess = excess - tonumber(call('HGET', MINUTE, KINDS[kind] .. number) or 0)
    if excess <= 0 then return (number + NUM_SLOTS + 1) * SLOT_MS - now_ms end
  end
  return (NUM_SLOTS + 1) * SLOT_MS
end

local loose = {}

-- op: id, amounts of the minute (without the request), wanted, input_nano, output_femto, is_priced, 4 limits, concurrent, 4 budgets
function loose.reserve(op)
  local day = floor(now_s / 86400)
  local month = month_of(day)
  local amounts, limits, budgets = {1, op[3], op[4], op[5]}, op[10], op[12]
  local waits, fits = {0, 0, 0, 0}, true
  for kind = 1, 4 do
    local excess = totals[kind] + amounts[kind] - limits[kind]
    if limits[kind] >= 0 and excess > 0 then
      waits[kind], fits = wait_ms(kind, excess), false
    end
  end
  local spent = spent_in(day, month)
  local granted = affordable(op[6], spent, budgets, op[3], op[7], op[8], op[9])
  local running = call('ZCARD', LEASES)
  fits = fits and granted >= 1 and (op[11] < 0 or running < op[11])
  if fits then
    open_slot()
    add(slot, unpack(amounts))
    local tokens, nano_usd = op[3] + granted, op[7] + ceil(granted * op[8] / 1e6)
    spend(day, month, tokens, nano_usd)
    spent = {spent[1] + tokens, spent[2] + tokens, spent[3] + nano_usd, spent[4] + nano_usd}
    running = running + 1
    lease(op[2])
    keep(op[2], {
      slot = slot, input = op[3], uncached = op[4], charged = op[5], slot_of_last = slot, last_charge = 0,
      day = day, month = month, tokens = tokens, nano_usd = nano_usd, input_nano = op[7],
    })
    if running == 1 then expire_late() end
  end
  local full_ms = newest and (newest + NUM_SLOTS + 1) * SLOT_MS - now_ms or 0
  local answer = {
    fits and 1 or 0, granted, now_s, day, month, running, full_ms, totals[1], totals[2], totals[3], totals[4],
    spent[1], spent[2], spent[3], spent[4], waits[1], waits[2], waits[3], waits[4],
  }
  for index, number in ipairs(answer) do answer[index] = int(number) end
  return table.concat(answer, ' ')
end

-- op: id, num_cached, input_nano
function loose.prefilled(op)
  local hold = hold_of(op[2])
  if not hold then return '' end
  local uncached = hold.input - op[3]
  add(hold.slot, 0, 0, uncached - hold.uncached, 0)
  spend(hold.day, hold.month, 0, op[4] - hold.input_nano)
  hold.uncached, hold.nano_usd, hold.input_nano = uncached, hold.nano_usd + op[4] - hold.input_nano, op[4]
  keep(op[2], hold)
  return ''
end

-- op: id, more output for the minute, more to grant, output_femto, is_priced, 4 budgets. Returns how many were
-- granted, and what had been spent before.
function loose.extend(op)
  local hold = hold_of(op[2])
  if not hold then return int(op[4]) end  -- will be charged in full when it is settled
  if op[3] > 0 then
    open_slot()
    add(slot, 0, 0, 0, op[3])
    hold.charged, hold.slot_of_last, hold.last_charge = hold.charged + op[3], slot, op[3]
  end
  local granted, spent = 0, spent_in(hold.day, hold.month)
  if op[4] > 0 then
    granted = math.max(0, affordable(op[4], spent, op[7], 0, 0, op[5], op[6]))
    local nano_usd = ceil(granted * op[5] / 1e6)
    spend(hold.day, hold.month, granted, nano_usd)
    hold.tokens, hold.nano_usd = hold.tokens + granted, hold.nano_usd + nano_usd
  end
  keep(op[2], hold)
  return table.concat({int(granted), int(spent[1]), int(spent[2]), int(spent[3]), int(spent[4])}, ' ')
end

-- op: tokens and nano-USD of the day, of the month; the ledger's, once for each window
function loose.seed(op)
  local day = floor(now_s / 86400)
  for _, window in ipairs({{base .. ':d' .. day, op[2], op[3], DAY_TTL_S}, {base .. ':m' .. month_of(day), op[4], op[5], MONTH_TTL_S}}) do
    if call('HSETNX', window[1], 'b', 1) == 1 then
      call('HINCRBY', window[1], 't', int(window[2]))
      call('HINCRBY', window[1], 'n', int(window[3]))
      call('EXPIRE', window[1], window[4])
    end
  end
  return ''
end

roll()
if #input.exact > 0 then
  local applied = base .. ':applied:' .. input.replica
  if tonumber(call('GET', applied) or 0) < input.seq then
    for _, op in ipairs(input.exact) do settle(unpack(op)) end
    call('SET', applied, int(input.seq), 'EX', REPLICA_TTL_S)
  end
end
for _, id in ipairs(input.renew) do lease(id) end
if #input.renew > 0 then expire_late() end
reap()
local answers = {}
for index, op in ipairs(input.loose) do answers[index] = loose[op[1]](op) end
if is_changed then
  call('HSET', MINUTE, 'r', int(totals[1]), 'i', int(totals[2]), 'u', int(totals[3]), 'o', int(totals[4]))
  call('PEXPIRE', MINUTE, WINDOW_TTL_MS)
  call('PEXPIRE', SLOTS, WINDOW_TTL_MS)
end
return table.concat(answers, ';')
