"""What a user writes: applications, operators, topics, stores, and how they become DataFrames."""
