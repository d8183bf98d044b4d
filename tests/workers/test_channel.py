"""What supervisor and worker say to each other."""

from __future__ import annotations

from server.workers.channel import Channel, pair


async def test_words_come_in_order_also_those_said_before_it_was_open() -> None:
    here, there = map(Channel, pair())
    here.say("up")
    await here.open()
    await there.open()
    here.say("first_key", 'a "secret"\nof two lines')
    here.say("drained")
    here.close()

    assert [("up", ""), ("first_key", 'a "secret"\nof two lines'), ("drained", "")] == [word async for word in there.heard()]
    there.close()


async def test_one_whose_other_side_is_gone_hears_nothing_and_says_nothing() -> None:
    here, there = map(Channel, pair())
    there.close()
    await here.open()
    here.say("up")

    assert [] == [word async for word in here.heard()]
    here.say("drained")
    here.close()


async def test_a_long_reason_is_cut_and_ends_nothing() -> None:
    here, there = map(Channel, pair())
    await here.open()
    await there.open()
    here.say("failed", "\x01é" * 100_000)
    here.say("drained")
    here.close()

    words = [(word, text[:2]) async for word, text in there.heard()]
    assert [("failed", "\x01é"), ("drained", "")] == words
    there.close()


async def test_of_one_who_is_gone_in_the_middle_of_a_word_the_word_is_not_heard() -> None:
    end, other = pair()
    here = Channel(other)
    await here.open()
    end.sendall(b'["up", ""]\n["failed", "the eng')
    end.close()

    assert [("up", "")] == [word async for word in here.heard()]
    here.close()
