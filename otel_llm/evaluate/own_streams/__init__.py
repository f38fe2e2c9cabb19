"""The evaluation of streams that the process itself owns: their tokens are known at once, without segments.

Rules decide here as in a collector (`tests/evaluate/own_streams/test_first_hand_agrees.py`), so their facts must not
depend on how a sender cuts a stream into segments.
"""
