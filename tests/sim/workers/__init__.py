"""Several workers of one broker in the simulator: who leads what changes all the time, and clients
of any of them must see one server."""
