"""From a model to an answer in one call: models, the call, its result and its files."""
