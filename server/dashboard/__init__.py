"""The page at `/dashboard`: what a gateway is doing, and has done for the last quarter of an hour, for people without Grafana.

`counts` reads what was counted, where a scrape of `/metrics` reads it too; `points` makes figures of it; `history` keeps them;
`tenants` makes a page of the tenants' table; `replica` says how the replica is; `dashboard` puts all together; `files` are what
a browser gets, from `static/`.
"""
