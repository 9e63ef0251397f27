"""Sources of samples: one module per kind of source, each registered by being here."""
