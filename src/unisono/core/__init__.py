"""The contract between methods and everything that runs them: payloads, contexts, config sections, registries."""
