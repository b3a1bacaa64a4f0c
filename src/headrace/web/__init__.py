"""The HTTP interface of the control plane: the JSON API below `/api/v1`, the pages, the probes.

Requests come in from browsers, the command line and programs; JSON, server-sent events, Prometheus'
text and the files of the pages go out. The web layer owns no state that matters: it asks the
controller in its process and the broker over the broker's own protocol, as the user who asks, and
keeps samples of both for live pages. Sessions of browsers and histories of rates end with it.

Begin with `app`, which puts the rooms together, and `server.endpoints`, by which every path is
declared: what it takes and gives, who may ask.
"""
