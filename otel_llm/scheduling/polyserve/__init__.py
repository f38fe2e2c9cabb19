"""PolyServe as a policy: it places requests by the deadlines of their tiers. No I/O, no clock; integer ns.

Source: PolyServe (section 4). The caller feeds it with arrivals, first tokens and ends; `replica` has the protocols.
"""
