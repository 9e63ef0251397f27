"""One file per partition scheme; a new file is registered by being here."""
