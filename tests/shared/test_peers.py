"""Which connections of whom are let in, and which are closed for them."""

from __future__ import annotations

from otel_llm.shared.web.peers import Peers, peer_of


def test_whom_an_address_counts_for() -> None:
    assert peer_of("10.0.0.1") == peer_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert peer_of("2001:db8:0:1::1") == peer_of("2001:db8:0:1:ffff::2%eth0") != peer_of("2001:db8:0:2::1")


def test_room_is_made_by_the_oldest_that_is_beginning() -> None:
    peers: Peers[int] = Peers(8, None)
    for number in range(6):
        assert peers.arrived(number, "a").admitted
        assert peers.established(number)
    assert peers.arrived(6, "c") == (True, ())
    assert peers.arrived(7, "d") == (True, ())
    assert peers.arrived(8, "e") == (True, (6,))
    assert peers.arrived(9, "e") == (True, (7,))
    assert peers.arrived(10, "e") == (True, (8,))
    assert peers.established(9)
    assert peers.established(10)
    assert peers.arrived(11, "f") == (False, ())
    peers.left(9)
    assert peers.arrived(11, "f") == (True, ())
