"""Speed and memory, always a ratio measured side by side in one run."""
