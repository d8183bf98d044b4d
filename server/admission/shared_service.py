"""The fair queues of many replicas, counting together.

Role: tells the other replicas, through Redis, how the counters here have moved, and takes over how they have moved there. A
tenant that floods one replica is then behind at the others, too.
Invariant: every movement counts once: what was sent and not answered is sent again under the same number, and applied once. The
queue never waits for this; while Redis is away, counters go on here and are merged when it is back.
Must not: lower a total because Redis lost it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from server.admission.fair_queue import FairQueue
from server.admission.place import Account
from server.admission.service import UNIT

INTERVAL_S: Final = 0.2
DEADLINE_S: Final = 0.05
_MAX_ACCOUNTS: Final = 1000
_FLOOR_TTL_MS: Final = 2000
_TOTAL_TTL_S: Final = 3600
# KEYS: this replica's last number; all replicas' floors; then each tenant's total. ARGV: the number; this replica; its floor or
# ""; lifetimes of floors in ms and totals in s; then for each tenant: what was added, its counter here, and "1" where it was
# lifted. Answers: the least floor of the others or "", then the totals.
_SCRIPT: Final = """
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[2], ARGV[2])
else
  redis.call('HSET', KEYS[2], ARGV[2], string.format('%d %s', now, ARGV[3]))
end
redis.call('EXPIRE', KEYS[2], ARGV[5])
local answer = {''}
local least
local floors = redis.call('HGETALL', KEYS[2])
for i = 1, #floors, 2 do
  local at, floor = string.match(floors[i + 1], '^(%d+) (.+)$')
  if math.abs(now - tonumber(at)) > tonumber(ARGV[4]) then
    redis.call('HDEL', KEYS[2], floors[i])
  elseif floors[i] ~= ARGV[2] and (not least or tonumber(floor) < least) then
    least = tonumber(floor)
    answer[1] = floor
  end
end
local is_new = redis.call('GET', KEYS[1]) ~= ARGV[1]
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[5])
for i = 3, #KEYS do
  local at = 6 + (i - 3) * 3
  local before = redis.call('GET', KEYS[i])
  local total = tonumber(before or ARGV[at + 1])
  if before and is_new then
    total = total + tonumber(ARGV[at])
    if ARGV[at + 2] == '1' then
      total = math.max(total, tonumber(ARGV[at + 1]))
    end
  end
  total = string.format('%.17g', total)
  redis.call('SET', KEYS[i], total, 'EX', ARGV[5])
  answer[#answer + 1] = total
end
return answer
"""
log = structlog.get_logger(__name__)


@dataclass(slots=True, frozen=True)
class _Move:
    """How one counter has moved: `added` service, to `counter`; where it was lifted, the total is that at least."""

    account: Account
    added: int
    counter: int
    is_lifted: bool


class SharedService:
    """Exchanges the counters of `queue` with other replicas. `run` is to be cancelled; `is_away`: the last exchange failed."""

    def __init__(self, redis: Redis, queue: FairQueue, *, prefix: str = "{k3gw}:service") -> None:
        self._queue = queue
        self._prefix = prefix
        self._replica = secrets.token_hex(8)
        self._script = redis.register_script(_SCRIPT)
        self._number = 0
        self._unanswered: list[_Move] = []
        self._round: list[Account] = []
        self.is_away = False
        queue.accounts.keeps_unshared = True

    async def run(self) -> None:
        """Exchange again and again."""
        while True:
            await self.exchange()
            await asyncio.sleep(INTERVAL_S)

    async def exchange(self) -> None:
        """Tell and take over, once. Takes 50 ms at most, and raises nothing where Redis is away."""
        moves = self._unanswered = self._unanswered or self._moves()
        try:
            async with asyncio.timeout(DEADLINE_S):
                floor, *totals = await self._script(**self._words(moves))
        except (RedisError, OSError, TimeoutError) as error:
            self._note(away=True, why=type(error).__name__)
            return
        self._unanswered = []
        self._note(away=False)
        accounts = self._queue.accounts
        accounts.others_floor = round(float(floor) * UNIT) if floor else None
        for move, total in zip(moves, totals, strict=True):
            self._take_over(move, round(float(total) * UNIT))

    def _moves(self) -> list[_Move]:
        """Of the accounts that have moved, or will soon; where there are many, all get their turns. They move on from there."""
        self._number += 1
        self._round = self._round or [account for account in self._queue.accounts if not (account.is_idle and account.is_shared)]
        moves = []
        for account in self._round[:_MAX_ACCOUNTS]:
            added = account.counter - account.shared - account.lifted
            moves.append(_Move(account, added, account.counter, account.is_lifted))
            account.shared, account.lifted, account.is_lifted = account.counter, 0, False
        del self._round[:_MAX_ACCOUNTS]
        return moves

    def _words(self, moves: Sequence[_Move]) -> dict[str, Any]:
        """Keys and arguments of the script."""
        least = self._queue.least
        keys = [f"{self._prefix}:replica:{self._replica}", f"{self._prefix}:floors"]
        args: list[str] = [str(self._number), self._replica, "" if least is None else _text(least)]
        args += [str(_FLOOR_TTL_MS), str(_TOTAL_TTL_S)]
        for move in moves:
            keys.append(f"{self._prefix}:tenant:{move.account.name}")
            args += [_text(move.added), _text(move.counter), "1" if move.is_lifted else "0"]
        return {"keys": keys, "args": args}

    def _take_over(self, move: _Move, total: int) -> None:
        account, difference = move.account, total - move.counter
        account.counter += difference
        account.shared += difference
        if difference < 0:
            self._queue.lowered(account)
        if account.is_idle:
            self._queue.accounts.tidy(account)

    def _note(self, *, away: bool, why: str = "") -> None:
        """Say in the log when it changes."""
        if away and not self.is_away:
            log.warning("shared_service_away", why=why, what="fair shares are counted in this process alone until it is back")
        elif self.is_away and not away:
            log.info("shared_service_back")
        self.is_away = away


def _text(counter: int) -> str:
    """Redis counts in whole tokens, as floating-point numbers."""
    return repr(counter / UNIT)
