"""Several processes that serve one replica, where one is not enough: `http.workers`.

`supervisor` starts them and the engine, passes on what one of them or an operator wants of all, and ends all when one ends;
`worker` is one of them: the gateway of a single process, on an engine that it shares; `channel` is what the two say to each
other; `peers` is how a worker asks the others for their part of what one of them is asked about all; `board` is what they know of
each other's seats. With one worker, nothing of this is used.
"""
