"""The contract: what crosses a wire, who is asked, and how a method answers."""
