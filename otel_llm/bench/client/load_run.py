"""One run of a load as its starter sees it (the interface of `bench` and of the probes of `capacity`).

How a run is started and observed:

    target = Target.read(url, model=..., api="chat", headers=..., key=...)        # client/target.py
    learned = learn(target, ...)            # client/learning.py: what the server refuses, tokens a word; raises
                                            # UnreachableError (exit 2), RefusedError (wrong model, 401 ...)
    plan = LoadPlan(at_ns, input_tokens, output_tokens, first_number=0)           # plan/load_plan.py, (R,) int64 each
    with LoadClient(target, learned, Prompts(seed, ...), workers=1) as client:    # worker processes; several runs, one
        run = client.start(plan)                                                  # after another
        while run.running:
            for request in run.step(timeout_s=0.1):     # the requests that changed: sent, tokens, ended
                ...
            if decided:
                run.stop()                  # send no further request; those in flight go on
        run.drain(60.0)                     # wait for them, at most so long, then cancel; `step` within
        run.validity()                      # Validity(valid, why, send_lag_ms, cpu)

    run.requests        list[ObservedRequest], by intended time: those sent so far
    run.watermark_ns    every event before this instant is in `requests`, of all workers (monotonic ns): the "now" at
                        which a deadline of a request in flight has passed or not
    run.in_flight       list[int]: for `requests[i]` with intended_ns <= watermark_ns, how many requests were in flight
                        at its intended time (itself not counted)
    run.started_ns      the instant of `plan.at_ns` = 0

Prompts depend on the seed and the request's number: give each probe a `first_number` above the last one's.
"""
