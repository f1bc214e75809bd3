"""The pages of docs/: those that are made from the code, and the snippets of all of them."""
