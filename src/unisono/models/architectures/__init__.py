"""The built-in backbones, one family per module; a module here registers itself by being here."""
