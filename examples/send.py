"""Send an example's sample to a server, with the Python client:

    python examples/send.py word_count

It makes the topics if there are none. The server is the one of HEADRACE_ADDRESS, by default the one
that `headrace up --dev` serves.
"""

import importlib
import sys
from pathlib import Path

from headrace.client import connect_sync


def main(name: str) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    example = importlib.import_module(name)
    with connect_sync() as client:
        for port, rows in example.SAMPLE.items():
            topic = example.app.topics[port].topic
            client.create_topic(topic, exist_ok=True)
            client.send_many(topic, rows)
            print(f"sent {len(rows)} messages to {topic}")


if __name__ == "__main__":
    main(sys.argv[1])
