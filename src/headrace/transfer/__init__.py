"""Messages from one topic into another, each once: copies, dead letters and sending them again.

In come a source topic and two points of it; out go the same messages in a target topic.
`offset_ranges` fixes what is read before anything is sent, `copying` brings it over, and `delivery`
publishes it so that a copy that was cut off goes on where it stood. `dead_letters` says what a
letter is, and `redriving` sends letters back where they came from. The command line and the web
pages call it. Begin with `copying.py`.
"""
