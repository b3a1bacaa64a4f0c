"""The JSON API of what the broker has: streams, topics, messages, groups, clients and users.

A request comes in with the user's login and goes to the broker over a connection of that user
(`broker_connections`), so that the broker decides what they may do. Lists, rates and lags come from
samples that are taken as the service (`catalogue`, `groups`) and shown as far as a user may see.
`types` has what goes out. Begin with `topics`; `messages` is the browser of messages, whose Arrow
tables a process of their own reads (`arrow_worker`).
"""
