"""Word count: lines of text in, how often each word has come so far out.

    headrace pipeline run examples/word_count.py

Without a schema a topic's rows are its messages: `payload`, `key`, `offset`, `timestamp`, …
`output_mode="update"` publishes a word whenever its count changes, under the word as key, so that
the last message of a key is its count.
"""

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from headrace import Application

SAMPLE = {
    "lines": [
        "The mill turns because the water comes",
        "the water comes because of the headrace",
    ]
}

app = Application("word-count", trigger="1 second")
app.topic("lines", "text/lines")


@app.operator
def words(lines: DataFrame) -> DataFrame:
    text = F.lower(F.col("payload").cast("string"))
    return lines.select(F.explode(F.split(text, r"\W+")).alias("word")).where("word != ''")


@app.operator(to="text/counts", key="word", output_mode="update")
def counts(words: DataFrame) -> DataFrame:
    return words.groupBy("word").count()
