"""The splice of a resumed stream, without I/O: requests, SSE lines and chunks as bytes in, bytes and values out.

`request` and `eligibility` read the client's request; `lines`, `chunk`, `stated_error` and `edit` a backend's reply;
`reply` is the stream as its client has it; `resume` builds the request that continues it elsewhere, and `shape` gives
that reply the first one's form. `dialect` has the differences between the kinds of backend, and `keys` those of their
requests.
"""
