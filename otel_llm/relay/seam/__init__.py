"""The seam of a resumed stream, without I/O: requests, SSE lines and chunks as bytes in, bytes and values out.

`request` and `eligibility` look at what a client asks for; `lines`, `chunk` and `edit` at what a backend sends; `reply`
is a stream as its client has it; `resume` says how another backend continues it and `shape` gives that the first form.
What differs between the kinds of backend is in `dialect`, and in the `keys` of their requests.
"""
